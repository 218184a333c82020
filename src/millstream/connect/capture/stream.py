"""The stream of changes as a state machine: messages in, records and a position out. No I/O.

`ChangeStream.process` takes the payloads of the replication connection in order. Rows are encoded
by compiled code into one buffer per topic; `take` returns what was encoded. At any time `position`
covers exactly what was processed, and nothing else: the two are committed together.

A position may lie within a transaction. PostgreSQL cannot start there, it sends the transaction
again from its beginning; the stream then counts the changes that were written before, and skips
them. The number of a change within its transaction is the only exact position: several changes can
have the same LSN.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.connect.capture import pgoutput
from millstream.connect.capture.avro_records import (
    MESSAGES,
    TRANSACTIONS,
    RecordSchemas,
    formatted,
)
from millstream.connect.capture.encoding import (
    ChangeBuffer,
    ChangeColumns,
    ChangeFeed,
    StreamContext,
    TableEncoder,
    commit,
    take_columns,
)
from millstream.connect.capture.envelope import (
    EnvelopeSettings,
    Record,
    message_record,
    transaction_begin,
    transaction_end,
)
from millstream.connect.capture.pgoutput import Begin, Relation, format_lsn
from millstream.connect.capture.position import Position
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.tables import CaptureError, StaleTypes, Table
from millstream.connect.capture.visibility import ChangedKeys

Describe = Callable[[Relation], Table]
MakeEncoder = Callable[[Table, ChangeBuffer, bool], TableEncoder]
OnSignal = Callable[[dict[str, Any]], None]
OnRelation = Callable[[Table, int], None]  # the transaction, too


class _Range(NamedTuple):
    """Rows of a topic's buffer that one transaction has changed."""

    table: str
    xid: int
    start: int
    end: int


@dataclass
class _Cut:
    """What is skipped of a transaction that was cut."""

    commit_lsn: int
    ordinal: int
    messages: int


@dataclass
class _Open:
    """The transaction that is being processed."""

    begin: Begin
    skipped_messages: int = 0
    messages: int = 0
    is_announced: bool = False  # its BEGIN is written
    starts: dict[str, int] = field(default_factory=dict)  # of its rows, in tracked tables


class ChangeStream:
    """See the module."""

    def __init__(
        self,
        settings: CaptureSettings,
        envelope: EnvelopeSettings,
        position: Position,
        *,
        describe: Describe,
        make_encoder: MakeEncoder,
        reload_types: Callable[[], None],
        context: StreamContext,
        changed: ChangedKeys,
        on_signal: OnSignal,
        on_relation: OnRelation,
        is_captured: Callable[[Table], bool],
    ) -> None:
        self._settings = settings
        self._envelope = envelope
        self._describe = describe
        self._make_encoder = make_encoder
        self._reload_types = reload_types
        self._on_signal = on_signal
        self._on_relation = on_relation
        self._is_captured = is_captured
        self._context = context
        self._changed = changed
        self._feed = ChangeFeed()
        self._buffers: dict[str, ChangeBuffer] = {}
        self._ignored = ChangeBuffer()
        self._encoders: dict[int, tuple[TableEncoder, ChangeBuffer]] = {}
        self._ranges: dict[str, list[_Range]] = {}
        self._lsn = position.lsn
        self._open: _Open | None = None
        self._cut: _Cut | None = None
        if position.is_cut:
            self._cut = _Cut(position.commit_lsn, position.ordinal, position.messages)
        self.transactions = 0
        self.commit_time_us = 0  # of the last transaction

    @property
    def in_transaction(self) -> bool:
        return self._open is not None

    @property
    def position(self) -> Position:
        if self._open is None:
            if self._cut is not None:
                return Position(
                    self._lsn, self._cut.commit_lsn, self._cut.ordinal, self._cut.messages
                )
            return Position(self._lsn)
        return Position(
            self._lsn, self._open.begin.commit_lsn, self._context.ordinal, self._open.messages
        )

    @property
    def has_records(self) -> bool:
        return any(len(buffer) for buffer in self._buffers.values())

    def process(self, payloads: list[bytes]) -> None:
        """Encode payloads, which continue those of the last call."""
        self._start_ranges()
        at, end = 0, len(payloads)
        while True:
            at = self._feed_rows(payloads, at)
            if at == end:
                break
            payload = payloads[at]
            at += 1
            if payload[0] == pgoutput.KEEPALIVE:
                self._keepalive(payload)
            else:
                self._message(payload)
        self._end_ranges()
        if self._open is not None:
            self._announce(self._open)
        self._ignored.clear()

    def _feed_rows(self, payloads: list[bytes], at: int) -> int:
        """Encode rows up to the next message of another kind."""
        before = self._context.ordinal
        try:
            return self._feed.feed(payloads, at)
        except StaleTypes:
            # A type has changed, which no message announces. The row itself was not counted.
            at += self._context.ordinal - before
            self._reload_types()
            for encoder, buffer in list(self._encoders.values()):
                self._register(encoder.table, buffer)
            return self._feed.feed(payloads, at)

    def take(self) -> Iterator[tuple[str, ChangeColumns]]:
        """The encoded records of each topic."""
        for topic, buffer in self._buffers.items():
            if not len(buffer):
                continue
            columns = take_columns(buffer)
            for rows in self._ranges.pop(topic, ()):
                if self._changed.tracks(rows.table):
                    keys = columns.key_list(rows.start, rows.end)
                    self._changed.add(rows.table, rows.xid, keys)
            yield topic, columns

    # Messages

    def _message(self, payload: bytes) -> None:
        match payload[pgoutput.KIND]:
            case pgoutput.BEGIN:
                self._begin(pgoutput.parse_begin(payload))
            case pgoutput.COMMIT:
                self._commit(pgoutput.parse_commit(payload).end_lsn)
            case pgoutput.RELATION:
                self._relation(pgoutput.parse_relation(payload))
            case pgoutput.TRUNCATE:
                self._truncate(payload)
            case pgoutput.MESSAGE:
                self._logical_message(pgoutput.parse_message(payload))
            case pgoutput.TYPE | pgoutput.ORIGIN:
                pass
            case other:
                raise CaptureError(f"unknown replication message {chr(other)!r}")

    def _keepalive(self, payload: bytes) -> None:
        """Everything up to the server's position was sent; within a transaction that is not so."""
        if self._open is None and self._cut is None:
            self._lsn = max(self._lsn, pgoutput.parse_keepalive(payload).wal_end)

    def _begin(self, begin: Begin) -> None:
        skip, skipped_messages, is_announced = 0, 0, False
        if self._cut is not None:
            if begin.commit_lsn != self._cut.commit_lsn:
                raise CaptureError(
                    f"the transaction at {format_lsn(self._cut.commit_lsn)}, which is partly "
                    f"written, was not sent again; the next one is at "
                    f"{format_lsn(begin.commit_lsn)}. Was the slot moved?"
                )
            skip, skipped_messages = self._cut.ordinal, self._cut.messages
            is_announced, self._cut = skip > 0, None
        self._context.begin(
            xid=begin.xid,
            commit_lsn=begin.commit_lsn,
            commit_time_us=begin.commit_time_us,
            now_us=time.time_ns() // 1000,
            skip=skip,
        )
        self._changed.begin(begin.xid)
        if skip:  # their keys are not known
            for table in self._changed.tables:
                self._changed.add_all(table, begin.xid)
        self._open = _Open(begin, skipped_messages, is_announced=is_announced)
        self._start_ranges()

    def _commit(self, end_lsn: int) -> None:
        assert self._open is not None
        self._end_ranges()
        self._announce(self._open)
        has_rows = self._context.ordinal > 0
        summary = commit(self._context, end_lsn)
        if self._settings.transactions and has_rows:
            record = transaction_end(self._context, summary)
            self._append(self._settings.transaction_topic, record, TRANSACTIONS)
        self._lsn = end_lsn
        self.commit_time_us = self._open.begin.commit_time_us
        self.transactions += 1
        self._open = None

    def _announce(self, transaction: _Open) -> None:
        """BEGIN is written once it is known that the transaction has changes."""
        if transaction.is_announced or self._context.ordinal == 0:
            return
        transaction.is_announced = True
        if self._settings.transactions:
            record = transaction_begin(self._context)
            self._append(self._settings.transaction_topic, record, TRANSACTIONS)

    def _relation(self, relation: Relation) -> None:
        assert self._open is not None
        table = self._describe(relation)
        self._on_relation(table, self._open.begin.xid)
        if self._is_captured(table):
            buffer = self._buffer(self._settings.topic_of(table.schema, table.name))
        else:
            buffer = self._ignored  # encoded, since changes are counted, and thrown away
        self._register(table, buffer)

    def _register(self, table: Table, buffer: ChangeBuffer) -> None:
        encoder = self._make_encoder(table, buffer, buffer is not self._ignored)
        self._feed.register(encoder)
        self._encoders[table.oid] = (encoder, buffer)

    def _truncate(self, payload: bytes) -> None:
        assert self._open is not None
        lsn = pgoutput.start_lsn(payload)
        for oid in pgoutput.parse_truncate(payload).oids:
            encoder, _ = self._encoders[oid]
            encoder.truncate(lsn)
            if self._changed.tracks(encoder.table.full_name):
                self._changed.add_all(encoder.table.full_name, self._open.begin.xid)

    def _logical_message(self, message: pgoutput.Message) -> None:
        is_skipped = False
        if message.is_transactional:
            assert self._open is not None
            self._open.messages += 1
            is_skipped = self._open.messages <= self._open.skipped_messages
        elif self._open is None:
            # The server sends it again unless the start lies behind it.
            self._lsn = max(self._lsn, message.lsn + 1)
        if message.prefix == self._settings.signal_prefix:
            if not is_skipped:
                self._signal(message.content)
        elif self._settings.messages:
            record = message_record(  # also if it is skipped: it is counted
                self._envelope,
                self._context,
                prefix=message.prefix,
                content=message.content,
                lsn=message.lsn,
                is_transactional=message.is_transactional,
            )
            if record is not None and not is_skipped:
                self._append(self._settings.message_topic, record, MESSAGES)

    def _append(self, topic: str, record: Record, schemas: RecordSchemas) -> None:
        self._buffer(topic).append(*formatted(record, schemas, self._envelope, topic))

    def _signal(self, content: bytes) -> None:
        if not content:
            return  # it only marks a place in the log
        try:
            signal = json.loads(content)
        except ValueError:
            signal = None
        if isinstance(signal, dict):
            self._on_signal(signal)
            self._start_ranges()

    def _buffer(self, topic: str) -> ChangeBuffer:
        found = self._buffers.get(topic)
        if found is None:
            found = self._buffers[topic] = ChangeBuffer()
        return found

    # The rows of each transaction, for tables that are being read in chunks

    def _start_ranges(self) -> None:
        if self._open is not None:
            for table in self._changed.tables:
                if table not in self._open.starts:
                    self._open.starts[table] = len(self._buffer(self._topic(table)))

    def _end_ranges(self) -> None:
        if self._open is None:
            return
        for table, start in self._open.starts.items():
            topic = self._topic(table)
            end = len(self._buffer(topic))
            if end > start:
                rows = _Range(table, self._open.begin.xid, start, end)
                self._ranges.setdefault(topic, []).append(rows)
        self._open.starts.clear()

    def _topic(self, table: str) -> str:
        schema, _, name = table.partition(".")
        return self._settings.topic_of(schema, name)


class Slicer:
    """Cuts received payloads into slices, at the ends of transactions; a transaction that is larger
    than a slice is cut anywhere."""

    def __init__(self, slice_bytes: int) -> None:
        self._slice_bytes = slice_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, payloads: list[bytes], in_transaction: bool) -> Iterator[list[bytes]]:
        """The slices to process now. `in_transaction`: processing has stopped within one."""
        cut = _end_of_transactions(payloads)
        if cut is None:  # neither a begin nor a commit
            cut = 0 if self._pending or in_transaction else len(payloads)
        if cut:
            ready = self._pending + payloads[:cut]
            self._pending, self._pending_bytes = payloads[cut:], 0
            yield from self._slices(ready)
            payloads = self._pending
        else:
            self._pending += payloads
        self._pending_bytes += sum(map(len, payloads))
        if self._pending_bytes >= self._slice_bytes:
            ready, self._pending, self._pending_bytes = self._pending, [], 0
            yield from self._slices(ready)

    def _slices(self, payloads: list[bytes]) -> Iterator[list[bytes]]:
        if sum(map(len, payloads)) <= self._slice_bytes:
            yield payloads
            return
        start = size = 0
        for at, payload in enumerate(payloads, start=1):
            size += len(payload)
            is_end = payload[0] != pgoutput.KEEPALIVE and payload[pgoutput.KIND] == pgoutput.COMMIT
            if size >= (self._slice_bytes if is_end else 2 * self._slice_bytes):
                yield payloads[start:at]
                start, size = at, 0
        if start < len(payloads):
            yield payloads[start:]


def _end_of_transactions(payloads: list[bytes]) -> int | None:
    """Where the last transaction that has not ended begins; None within one."""
    for at in range(len(payloads) - 1, -1, -1):
        payload = payloads[at]
        if payload[0] != pgoutput.KEEPALIVE:
            kind = payload[pgoutput.KIND]
            if kind == pgoutput.COMMIT:
                return at + 1
            if kind == pgoutput.BEGIN:
                return at
    return None
