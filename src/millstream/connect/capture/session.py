"""One attempt of a capture: connects, continues from the stored position, and runs until it fails.

The order at the start decides what a crash can leave behind:

    1. connect to the database, and refuse one that the stored position is not of: a process that
       was started by mistake must not stop the one that runs
    2. become the writer: the previous process is fenced, its open transaction aborted
    3. read the state and the position, which are final now; write the state with its new owner
    4. check the database, the publication and the slot against them
    5. if there is no slot yet: write the state `creating`, create the slot, write its position
    6. copy the tables in the slot's snapshot, if they are to be copied
    7. stream from the position; tables that are not copied yet are read in chunks meanwhile
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg

from millstream.connect.capture.avro_records import HEARTBEATS, formatted
from millstream.connect.capture.chunks import ChunkTasks
from millstream.connect.capture.encoding import (
    ChangeBuffer,
    StreamContext,
    TableEncoder,
    table_encoder,
    take_columns,
)
from millstream.connect.capture.envelope import heartbeat_record
from millstream.connect.capture.membership import (
    Member,
    changes,
    first_tables,
    joining,
    partition_changes,
    read_members,
    with_members,
    without_absent,
)
from millstream.connect.capture.output import Output, Owner
from millstream.connect.capture.pgoutput import Relation, format_lsn
from millstream.connect.capture.position import CaptureState, Position
from millstream.connect.capture.progress import Progress
from millstream.connect.capture.replication import (
    OBJECT_IN_USE,
    CommandFailed,
    Receiver,
    ReplicationConnection,
)
from millstream.connect.capture.selection import SourceTable, refuse_incomplete
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.snapshot import Chunk, ExportedCopy
from millstream.connect.capture.source import Source
from millstream.connect.capture.stream import ChangeStream, Slicer
from millstream.connect.capture.tables import CaptureError, Table
from millstream.connect.capture.types import TypeCatalogue
from millstream.connect.capture.visibility import ChangedKeys, DatabaseSnapshot

TAKE_SECONDS = 0.1  # until a stop is noticed, at most
SLOT_BUSY_SECONDS = 30.0
WAIT_SECONDS = 0.2

log = logging.getLogger("millstream.capture")


class TablesChanged(Exception):
    """The captured tables are not those of the session any more: begin another one."""


class Session:
    """See the module. `run` returns when `stopping` is set."""

    def __init__(
        self,
        settings: CaptureSettings,
        progress: Progress,
        stopping: threading.Event,
        owner: Owner,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._stopping = stopping
        self._owner = owner
        self._output = Output(settings)
        self._receiver: Receiver | None = None
        self._replication: ReplicationConnection | None = None
        self._source: Source | None = None
        self._chunks: ChunkTasks | None = None
        self._context = StreamContext()
        self._written = Position(0)  # the last position that is written
        self._heartbeat_at = 0.0  # when the next heartbeat is due

    def run(self) -> None:
        try:
            self._run()
        finally:
            self._close()

    def _run(self) -> None:
        self._connect()
        state = self._output.open(self._owner)
        position = self._output.read_position()
        self._output.create_topics(
            self._settings.topic_of(it.schema, it.name) for it in self._tables.values()
        )
        if state is not None and self._must_start_over(state):
            state = self._reset(state)
        if state is None or state.phase == "creating":
            state, position = self._begin(state, position)
        assert position is not None
        self._stream(self._continued(state, position), position)

    def _connect(self) -> None:
        self._source = source = Source(self._settings)
        source.check_server()
        self._envelope = self._settings.envelope(source.database)
        self._types = TypeCatalogue.load(source.connection)
        self._replication = ReplicationConnection(self._settings.database)
        self._system = self._replication.identify()
        slot = source.slot()  # before the position, which a running process writes first
        state, position = self._output.read_stored()
        self._output.refuse_replaced(self._owner, state)  # it may have dropped the slot
        is_new = state is None or position is None or state.phase == "creating"
        selection = source.select({} if state is None else state.tables)
        if is_new:
            refuse_incomplete(self._settings, selection)
        self._progress.selected(selection)
        self._tables = selection.tables
        if state is not None and position is not None and not is_new:
            source.check_continued(self._replication, slot, state, position)

    def _close(self) -> None:
        if self._chunks is not None:
            self._chunks.stop()
        if self._receiver is not None:
            self._receiver.stop()
        elif self._replication is not None:
            self._replication.close()
        if self._source is not None:
            self._source.close()
        self._output.close()

    # The start

    def _must_start_over(self, state: CaptureState) -> bool:
        """Tables without a key cannot be continued after a crash in the first snapshot."""
        assert self._source is not None
        return state.phase == "snapshot" and any(
            name in self._tables and not self._source.copy_plan(self._tables[name]).table.key
            for name in state.unfinished
        )

    def _reset(self, state: CaptureState) -> CaptureState:
        """The state before the slot was created; what was copied is superseded."""
        tables = {
            name: table if table.is_left else table.restarted()
            for name, table in state.tables.items()
        }
        log.warning("the first snapshot was interrupted; it starts over")
        return replace(state, phase="creating", tables=tables)

    def _begin(
        self, before: CaptureState | None, before_position: Position | None
    ) -> tuple[CaptureState, Position]:
        """Create publication and slot, and copy the tables."""
        source, replication = self._source, self._replication
        assert source is not None
        assert replication is not None
        source.refuse_foreign_slot(source.slot(), before, before_position)
        publication = source.ensure_publication(self._tables)
        known = before.tables if before is not None else {}
        members = self._read_members(self._tables)
        state = CaptureState(
            "creating",
            self._system.id,
            self._system.timeline,
            self._system.database,
            self._settings.slot,
            self._settings.publication,
            publication.oid,
            owner=self._owner.id,
            generation=before.generation + 1 if before is not None else 1,
            tables=first_tables(known, members),
        )
        self._output.commit_state(state)
        self._owner.has_claimed = True
        source.drop_slot()
        slot = replication.create_slot(
            self._settings.slot, self._wait_for_slot(), failover=self._settings.failover
        )
        position = Position(slot.consistent_lsn)
        is_copied = self._settings.snapshot == "initial"
        state = replace(state, phase="snapshot", start_lsn=slot.consistent_lsn)
        if not is_copied:
            for name in state.unfinished:
                state = state.with_table(name, replace(state.tables[name], snapshot="done"))
        self._output.commit(position, state)
        log.info("slot %s starts at %s", self._settings.slot, format_lsn(position.lsn))
        if is_copied:
            state = self._copy(state, position, slot.snapshot)
        return state, position

    def _wait_for_slot(self) -> Any:
        """Called while the server waits for open transactions: names them, and gives up."""
        deadline = time.monotonic() + self._settings.slot_timeout_seconds
        warn_at = time.monotonic() + 2.0

        def wait() -> None:
            nonlocal warn_at
            assert self._source is not None
            now = time.monotonic()
            if self._stopping.is_set():
                raise CaptureError("stopped while creating the slot")
            if now > warn_at:
                culprits = self._source.open_transactions()
                self._progress.waiting = f"for open transactions: {culprits}"
                log.warning("creating the slot waits for open transactions: %s", culprits)
                warn_at = now + 10.0
            if now > deadline:
                raise CaptureError(
                    "creating the slot waits for transactions that are open since before: "
                    f"{self._source.open_transactions()}. End them (pg_terminate_backend), or "
                    "raise slot_timeout_seconds"
                )

        return wait

    # The first snapshot

    def _copy(self, state: CaptureState, position: Position, snapshot: str) -> CaptureState:
        assert self._source is not None
        plans = {name: self._source.copy_plan(self._tables[name]) for name in state.unfinished}
        encoders = {name: self._copier(plan.table) for name, plan in plans.items()}
        self._progress.begin_copy(state)
        copy = ExportedCopy(
            self._settings.database,
            snapshot,
            plans,
            workers=self._settings.snapshot_workers,
            chunk_rows=self._settings.chunk_rows,
        )
        try:
            for chunk in copy.chunks():
                state = self._write_copied(state, position, chunk, *encoders[chunk.table])
                if self._stopping.is_set():
                    break
        finally:
            copy.stop()
        return state

    def _copier(self, table: Table) -> tuple[TableEncoder, ChangeBuffer]:
        buffer = ChangeBuffer()
        return self._encoder(table, buffer), buffer

    def _write_copied(
        self,
        state: CaptureState,
        position: Position,
        chunk: Chunk,
        encoder: TableEncoder,
        buffer: ChangeBuffer,
    ) -> CaptureState:
        """One chunk and its progress, in one transaction."""
        before = state.tables[chunk.table]
        state = state.with_table(chunk.table, chunk.added_to(before))
        now_us = time.time_ns() // 1000
        topic = self._settings.topic_of(encoder.table.schema, encoder.table.name)
        if before.owes_truncate:
            self._truncate(encoder, position.lsn)
        for rows, flag in _flagged(chunk, is_first=not before.rows, is_end=not state.unfinished):
            encoder.copy(
                rows,
                flag=flag,
                lsn=position.lsn,
                xid=None,
                snapshot_time_us=now_us,
                now_us=now_us,
            )
        if len(buffer):
            self._output.write(topic, take_columns(buffer))
        if not state.unfinished:
            state = replace(state, phase="streaming")
        self._output.commit(position, state)
        self._progress.copied(state, len(chunk.rows))
        return state

    def _truncate(self, encoder: TableEncoder, lsn: int) -> None:
        """A truncate before the rows of a new snapshot: earlier records are superseded."""
        now_us = time.time_ns() // 1000
        self._context.begin(xid=0, commit_lsn=lsn, commit_time_us=now_us, now_us=now_us)
        encoder.truncate(lsn)

    # Continuing

    def _continued(self, state: CaptureState, position: Position) -> CaptureState:
        """Check what the position refers to; add tables that are new."""
        source = self._source
        assert source is not None
        assert self._replication is not None
        # Not earlier: the position may be new.
        self._system = source.check_continued(self._replication, source.slot(), state, position)
        if state.timeline != self._system.timeline:
            log.warning("timeline %d follows %d", self._system.timeline, state.timeline)
        now = without_absent(state, self._read_members(self._tables))
        source.ensure_publication(self._tables)
        members = self._read_members(self._tables)
        if new := joining(now, members):
            self._wait_for_writers([it.table for it in new.values()])
            if self._stopping.is_set():
                return state
        now = replace(
            self._with_members(now, members), phase="streaming", timeline=self._system.timeline
        )
        for change in changes(state, now):
            log.info("%s", change)
        for warning in partition_changes(state, members):
            log.warning("%s", warning)
        if now != state:
            self._output.commit(position, now)
        return now

    def _read_members(self, tables: Mapping[str, SourceTable]) -> dict[str, Member]:
        assert self._source is not None
        return read_members(self._source, self._settings.publication, tables)

    def _with_members(self, state: CaptureState, members: Mapping[str, Member]) -> CaptureState:
        return with_members(state, members, is_added_copied=self._settings.snapshot != "never")

    def _wait_for_writers(self, tables: list[SourceTable]) -> None:
        """A transaction that changed a table before it was published is not streamed, even if it
        commits afterwards. It must end before the table is read."""
        assert self._source is not None
        writers = self._source.writers(tables)
        warn_at = time.monotonic() + 2.0
        while writers and not self._stopping.is_set():
            if time.monotonic() > warn_at:
                log.warning(
                    "new tables wait for transactions that write to them: %s",
                    self._source.open_transactions(),
                )
                warn_at = time.monotonic() + 10.0
            self._stopping.wait(WAIT_SECONDS)
            writers &= self._source.writers(tables)

    # The stream

    def _stream(self, state: CaptureState, position: Position) -> None:
        assert self._source is not None
        assert self._replication is not None
        found = self._source.connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert found is not None
        changed = ChangedKeys(DatabaseSnapshot.parse(found[0]).in_progress)
        self._context.last_commit_lsn = position.lsn
        self._chunks = chunks = ChunkTasks(
            self._settings, state, self._source, changed, self._encoder, self._truncate
        )
        stream = ChangeStream(
            self._settings,
            self._envelope,
            position,
            describe=self._describe,
            make_encoder=self._encoder,
            reload_types=self._reload_types,
            context=self._context,
            changed=changed,
            on_signal=lambda signal: chunks.signal(signal, self._tables),
            on_relation=chunks.relation,
            is_captured=self._is_captured,
        )
        self._start(position)
        self._receiver = receiver = Receiver(self._replication, position.lsn)
        self._progress.begin_stream(state, position.lsn)
        slicer = Slicer(self._settings.slice_bytes)
        self._written = position
        self._heartbeat_at = time.monotonic() + self._settings.heartbeat_seconds
        while not self._stopping.is_set():
            chunks.request()
            timeout = min(TAKE_SECONDS, self._settings.heartbeat_seconds)
            payloads = receiver.take(timeout)
            for part in slicer.add(payloads, stream.in_transaction):
                stream.process(part)
                self._write(stream, chunks, receiver)
            self._write(stream, chunks, receiver)

    def _start(self, position: Position) -> None:
        """Start the slot; a previous process may still hold it."""
        assert self._replication is not None
        assert self._source is not None
        deadline = time.monotonic() + SLOT_BUSY_SECONDS
        while True:
            try:
                self._replication.start(
                    self._settings.slot, self._settings.publication, position.lsn
                )
                return
            except CommandFailed as error:
                if error.sqlstate != OBJECT_IN_USE or time.monotonic() > deadline:
                    raise
                slot = self._source.slot()
                if slot is not None and slot.active_pid is not None:
                    # That process is fenced already; it can only delay us.
                    self._source.terminate(slot.active_pid)
                self._stopping.wait(WAIT_SECONDS)

    def _write(self, stream: ChangeStream, chunks: ChunkTasks, receiver: Receiver) -> None:
        """Write what was processed, and commit it with its position."""
        records = 0
        for topic, columns in stream.take():
            self._output.write(topic, columns)
            records += columns.row_count
        if self._settings.atomic and stream.in_transaction:
            if records:
                self._output.flush()
                self._progress.streamed(records, stream)
            return
        position = stream.position
        if not stream.in_transaction:
            records += chunks.write(self._output, position, receiver)
        is_due = time.monotonic() >= self._heartbeat_at
        if is_due:
            self._heartbeat()
        is_moved = is_due and position != self._written
        if self._output.is_open or chunks.changed_state is not None or is_moved:
            self._output.commit(position, chunks.changed_state)
            chunks.committed()
            receiver.confirm(position.lsn)
            self._written = position
            self._progress.streamed(records, stream, chunks.state)
        if is_due and not stream.in_transaction:
            self._check_tables(chunks.state)

    def _heartbeat(self) -> None:
        """An idle capture still moves its slot, while other tables or databases fill the log."""
        assert self._source is not None
        self._heartbeat_at = time.monotonic() + self._settings.heartbeat_seconds
        if self._settings.heartbeat_topic:
            buffer = ChangeBuffer()
            topic = self._settings.heartbeat_topic_name
            record = heartbeat_record(self._envelope, time.time_ns() // 1000)
            buffer.append(*formatted(record, HEARTBEATS, self._envelope, topic))
            self._output.write(topic, take_columns(buffer))
        self._progress.slot = self._source.slot()
        self._check_lag()

    def _check_tables(self, state: CaptureState) -> None:
        """After a commit: a session that only finds changes would not come further."""
        assert self._source is not None
        selection = self._source.select(state.tables)
        self._progress.selected(selection)
        members = self._read_members(selection.tables)
        publication = self._source.publication()
        is_whole = publication is not None and not publication.unpublished_operations
        is_same = self._with_members(without_absent(state, members), members) == state
        if not is_whole or not is_same:
            raise TablesChanged("the captured tables, partitions or the publication have changed")

    def _check_lag(self) -> None:
        slot = self._progress.slot
        if slot is not None and slot.keeps_more_than(self._settings.lag_alarm_bytes):
            log.warning(
                "slot %s keeps %d MB of log on the database's disk (wal_status %s)",
                self._settings.slot,
                (slot.retained_bytes or 0) // 2**20,
                slot.wal_status,
            )

    # Encoders

    def _describe(self, relation: Relation) -> Table:
        assert self._source is not None
        if not all(self._types.knows(column.type_oid) for column in relation.columns):
            self._reload_types()
        return self._source.describe(relation)

    def _is_captured(self, table: Table) -> bool:
        """Whether the changes of a table are written. It may be newer than the session."""
        if table.full_name in self._tables:
            return True
        if not self._settings.captures(table.schema, table.name):
            return False
        assert self._source is not None
        assert self._chunks is not None
        return table.full_name not in self._source.select(self._chunks.state.tables).left_out

    def _reload_types(self) -> None:
        assert self._source is not None
        self._types = TypeCatalogue.load(self._source.connection)

    def _encoder(
        self, table: Table, buffer: ChangeBuffer, is_captured: bool = True
    ) -> TableEncoder:
        topic = self._settings.topic_of(table.schema, table.name)
        settings = self._envelope
        if not is_captured:  # its records are thrown away: no schemas in the registry
            settings = replace(settings, format="json", registry=None)
        return table_encoder(table, settings, self._types, self._context, buffer, topic)


def _flagged(chunk: Chunk, *, is_first: bool, is_end: bool) -> list[tuple[list[bytes], str]]:
    """Rows with Debezium's `snapshot` flags: the first and the last of a table differ."""
    rows = chunk.rows
    if not rows:
        return []
    parts: list[tuple[list[bytes], str]] = []
    if is_first and len(rows) > 1:
        parts.append((rows[:1], "first_in_data_collection"))
        rows = rows[1:]
    if chunk.is_last:
        if len(rows) > 1:
            parts.append((rows[:-1], "true"))
        parts.append((rows[-1:], "last" if is_end else "last_in_data_collection"))
    else:
        parts.append((rows, "true"))
    return parts


# Errors after which another session may succeed.
LOST = (
    OSError,  # ReplicationLost, and brokers that cannot be reached
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.UndefinedColumn,  # the table has changed since its catalogue was read
    psycopg.errors.UndefinedTable,
    TablesChanged,
)
