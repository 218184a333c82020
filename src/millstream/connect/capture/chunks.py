"""Tables that are copied in chunks beside the stream: which one is next, and when it is written.

A request for a new snapshot of a table comes as a logical message in the stream itself
(`millstream capture resnapshot`), so it is processed exactly once, like any other message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import psycopg

from millstream.connect.capture.encoding import ChangeBuffer, TableEncoder, take_columns
from millstream.connect.capture.output import Output
from millstream.connect.capture.position import CaptureState, Position, TableState
from millstream.connect.capture.replication import Receiver
from millstream.connect.capture.selection import SourceTable
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.snapshot import Chunk, ChunkReader
from millstream.connect.capture.source import CopyPlan, Source
from millstream.connect.capture.tables import Table
from millstream.connect.capture.visibility import ChangedKeys

RETRY_SECONDS = 0.2
WARN_SECONDS = 10.0

log = logging.getLogger("millstream.capture")

MakeEncoder = Callable[[Table, ChangeBuffer], TableEncoder]
Truncate = Callable[[TableEncoder, int], None]


class ChunkTasks:
    """See the module. `state` has the progress of all tables; `changed_state` if not committed."""

    def __init__(
        self,
        settings: CaptureSettings,
        state: CaptureState,
        source: Source,
        changed: ChangedKeys,
        make_encoder: MakeEncoder,
        truncate: Truncate,
    ) -> None:
        self._settings = settings
        self._source = source
        self._changed = changed
        self._make_encoder = make_encoder
        self._truncate = truncate
        self.state = state
        self.changed_state: CaptureState | None = None
        self._reader: ChunkReader | None = None
        self._plan: CopyPlan | None = None
        self._chunk: Chunk | None = None  # read, and not written yet
        self._retry_at = 0.0
        self._warn_at = 0.0
        self._names = {it.oid: name for name, it in state.tables.items() if not it.is_left}
        for table in state.unfinished:
            changed.track(table)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    # Requests

    def signal(self, signal: Mapping[str, Any], tables: Mapping[str, SourceTable]) -> None:
        """A message of `millstream capture resnapshot`."""
        wanted = signal.get("resnapshot")
        if not isinstance(wanted, list):
            return
        for name in wanted:
            table = tables.get(name)
            if table is None:
                log.warning("resnapshot of %s is ignored: it is not captured", name)
                continue
            before = self.state.tables[name]
            replaces = before.owes_truncate or bool(signal.get("replace"))
            new = replace(before.restarted(), rows_expected=table.rows_expected, replaces=replaces)
            self._forget_chunk(name)
            self._changed.track(name)
            self._update(name, new)
            log.info("resnapshot of %s begins", name)

    # Names

    def relation(self, table: Table, xid: int) -> None:
        """The stream goes on with rows of this table. If a captured table has another name there,
        or another table has its name, changes are missing from its topic."""
        for name in {table.full_name, self._names.get(table.oid, table.full_name)}:
            known = self.state.tables.get(name)
            is_same = known is not None and (name, known.oid) == (table.full_name, table.oid)
            if known is None or known.is_left or is_same:
                continue
            if known.snapshot == "waiting":  # its copy will have them, if it sees the transaction
                self._changed.add_all(name, xid)
                self._update(name, replace(known, replaces=True))
            else:
                self._forget_chunk(name)
                self._changed.forget(name)
                self._update(name, known.left())
                log.info("table %s was renamed or replaced; it is copied when it is back", name)

    def _forget_chunk(self, table: str) -> None:
        if self._chunk is not None and self._chunk.table == table:
            self._chunk = None

    def _update(self, name: str, table: TableState) -> None:
        self.state = self.changed_state = self.state.with_table(name, table)
        if not table.is_left:
            self._names[table.oid] = name

    def committed(self) -> None:
        self.changed_state = None

    # Reading

    def request(self) -> None:
        """Read the next chunk, unless one is being read or waits to be written."""
        if self._chunk is not None or time.monotonic() < self._retry_at:
            return
        unfinished = self.state.unfinished
        if not unfinished:
            return
        if self._reader is None:
            self._reader = ChunkReader(self._settings.database, self._mark)
        if self._reader.is_busy:
            return
        tables = self._source.tables(self.state.tables)
        there = [
            it for it in unfinished if it in tables and tables[it].oid == self.state.tables[it].oid
        ]
        if not there:  # dropped, or recreated: the next session finds out
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return
        name = there[0]
        table = tables[name]
        self._plan = self._source.copy_plan(table)
        after = self._continued(name, self._plan).after
        self._reader.request(name, self._plan, after, self._settings.chunk_rows)

    def _continued(self, name: str, plan: CopyPlan) -> TableState:
        """The progress of a copy; from the beginning if the key that it is ordered by has changed.
        Earlier versions did not store the key."""
        table = self.state.tables[name]
        is_same = (
            table.key == plan.key_order if table.key else len(table.after) == len(plan.key_order)
        )
        if table.after and not is_same:
            log.warning("the key of %s has changed while it was copied: the copy starts over", name)
            table = table.restarted()
            self._update(name, table)
        return table

    def _mark(self, connection: psycopg.Connection[Any]) -> None:
        """An empty message for ourselves: its commit flushes the log, and moves the stream."""
        connection.execute(
            "SELECT pg_logical_emit_message(true, %s, '')", (self._settings.signal_prefix,)
        )

    # Writing

    def write(self, output: Output, position: Position, receiver: Receiver) -> int:
        """Write the chunk if the stream has passed it; returns the number of records."""
        if self._chunk is None and self._reader is not None:
            self._chunk = self._reader.take()
        chunk = self._chunk
        if chunk is None:
            return 0
        if position.lsn < chunk.end_lsn:
            receiver.request_keepalive()
            return 0
        self._chunk = None
        before = self.state.tables[chunk.table]
        assert chunk.snapshot is not None
        if not before.is_unfinished or chunk.begins_after != before.after:
            return 0  # requested again meanwhile, or away
        stale = self._changed.stale_keys(chunk.table, chunk.snapshot)
        if stale is None:
            self._read_again(chunk)
            return 0
        if stale and before.owes_truncate:
            return self._write_truncate(output, position, chunk.table)
        return self._write_rows(output, position, chunk, before, stale)

    def _write_truncate(self, output: Output, position: Position, table: str) -> int:
        """Write the truncate alone, and read the rows again. What was streamed while they were read
        comes before the truncate: rows whose changes it contains must be in the chunk."""
        assert self._plan is not None
        buffer = ChangeBuffer()
        self._truncate(self._make_encoder(self._plan.table, buffer), position.lsn)
        output.write(self._topic(self._plan.table), take_columns(buffer))
        self._changed.forget(table)
        self._changed.track(table)
        self._update(table, replace(self.state.tables[table], snapshot="copying"))
        return 1

    def _write_rows(
        self,
        output: Output,
        position: Position,
        chunk: Chunk,
        before: TableState,
        stale: set[bytes],
    ) -> int:
        assert self._plan is not None
        table = self._plan.table
        buffer = ChangeBuffer()
        encoder = self._make_encoder(table, buffer)
        if before.owes_truncate or (before.snapshot == "waiting" and not table.key):
            self._truncate(encoder, position.lsn)
        now_us = time.time_ns() // 1000
        encoder.copy(
            chunk.rows, flag="incremental", lsn=None, xid=None, snapshot_time_us=now_us,
            now_us=now_us,
        )  # fmt: skip
        count = len(buffer)
        if count:
            output.write(self._topic(table), take_columns(buffer), stale)
        after = chunk.added_to(before)
        self._update(chunk.table, after)
        if chunk.is_last:
            self._changed.forget(chunk.table)
            log.info("%s is copied: %d rows", chunk.table, after.rows)
        return count

    def _topic(self, table: Table) -> str:
        return self._settings.topic_of(table.schema, table.name)

    def _read_again(self, chunk: Chunk) -> None:
        """A transaction that is in the log, but not visible yet, may have changed any row."""
        self._retry_at = time.monotonic() + RETRY_SECONDS
        blocking = self._changed.blocking(chunk.table)
        if blocking and time.monotonic() > self._warn_at:
            self._warn_at = time.monotonic() + WARN_SECONDS
            assert chunk.snapshot is not None
            xids = {chunk.snapshot.widen(xid) for xid in blocking}
            log.warning(
                "copying %s waits for transactions: %s",
                chunk.table,
                self._source.open_transactions(xids) or xids,
            )
