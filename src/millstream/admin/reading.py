"""Records of a topic for people: where they are, what became of their transactions, cut to a size
that can be shown.

A read_committed consumer sees neither records of aborted transactions nor anything from the first
open transaction on. Here all of them are read, and each has a state:

    committed   every consumer sees it
    aborted     only read_uncommitted consumers see it
    open        its transaction has not ended yet
    held        after the start of an open transaction: read_committed consumers wait for that

Below the last stable offset, a read_committed Fetch names the aborted transactions. From there on,
markers tell how transactions ended, and DescribeProducers which have not.

A `Reader` serves one request of a user. It fetches a limited number of bytes and keeps a limited
part of each key and value, so its memory is that of one batch.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from millstream.client.cluster import Cluster, check
from millstream.client.fetching import fetch_batches, fetch_committed
from millstream.models import dataclass
from millstream.records.batch import NO_PRODUCER_ID, BatchHeader, Buffer, iterate_headers
from millstream.records.columns import (
    AbortedRange,
    BinaryBuffers,
    BinaryColumn,
    Columns,
    decode_columns,
)
from millstream.records.record import ControlType, decode_batch

KEPT_BYTES = 4096  # of each key, value and header: enough for a line of a list
CHUNK_BYTES = 1024 * 1024
FIRST_CHUNK_BYTES = 64 * 1024
READ_BYTES_MAX = 64 * 1024 * 1024
READ_SECONDS_MAX = 10.0
FIRST_WINDOW = 8  # offsets; how large records are is known after it
WINDOW_MAX = 1_000_000


class State(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Header:
    name: str  # bytes that are no UTF-8 as surrogates
    value: bytes | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record; key, value and headers may be cut, their sizes are those of the whole."""

    partition: int
    offset: int
    timestamp_ms: int
    is_append_time: bool
    key: bytes | None
    value: bytes | None
    key_bytes: int
    value_bytes: int
    headers: tuple[Header, ...]
    state: State
    is_transactional: bool
    producer_id: int
    producer_epoch: int
    compression: str

    @property
    def is_cut(self) -> bool:
        return self.key_bytes > len(self.key or b"") or self.value_bytes > len(self.value or b"")


class OpenTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class Chunk(NamedTuple):
    """Fetched batches, and what is needed to tell the state of their records."""

    records: Buffer
    aborted: Sequence[AbortedRange]
    stable_offset: int  # what follows it is not decided; below, `aborted` names what was aborted


def decode_chunk(
    chunk: Chunk,
    partition: int,
    first: int,
    end: int,
    *,
    open_transactions: Callable[[], Sequence[OpenTransaction]],
    kept_bytes: int | None,
) -> Iterator[ReadRecord]:
    """The records whose offset is in the range. Raises `CorruptBatch`.

    `open_transactions` is called only if the state of a record depends on it.
    """
    view = memoryview(chunk.records)
    states = _stable_states(view, chunk.aborted)
    markers: list[tuple[int, int, ControlType | None]] | None = None
    for position, header in iterate_headers(view):
        state = next(states)
        if header.is_control or header.record_count == 0:
            continue
        if header.last_offset < first or header.base_offset >= end:
            continue
        if header.last_offset >= chunk.stable_offset:
            state = State.HELD
            if header.is_transactional:
                markers = _markers(view) if markers is None else markers
                state = _unstable_state(header, markers, open_transactions)
        batch = view[position : position + header.size_bytes]
        columns = decode_columns(batch, first_offset=first, end_offset=end, with_headers=True)
        yield from _records(columns, partition, header, state, kept_bytes)


def _stable_states(view: memoryview, aborted: Sequence[AbortedRange]) -> Iterator[State]:
    """The state of each batch: a transaction is aborted from its first offset on until its
    producer's abort marker."""
    to_come = sorted(aborted, key=lambda it: it.first_offset, reverse=True)
    aborting: set[int] = set()
    for position, header in iterate_headers(view):
        while to_come and to_come[-1].first_offset <= header.last_offset:
            aborting.add(to_come.pop().producer_id)
        is_aborted = header.is_transactional and header.producer_id in aborting
        if header.is_control and is_aborted and _marker(view, position) is ControlType.ABORT:
            aborting.discard(header.producer_id)
        yield State.ABORTED if is_aborted else State.COMMITTED


def _markers(view: memoryview) -> list[tuple[int, int, ControlType | None]]:
    """Producer, offset and type of the markers."""
    return [
        (header.producer_id, header.base_offset, _marker(view, position))
        for position, header in iterate_headers(view)
        if header.is_control
    ]


def _marker(view: memoryview, position: int) -> ControlType | None:
    records = decode_batch(view, position)
    return ControlType.from_key(records[0].key) if records else None  # compaction emptied it


def _unstable_state(
    header: BatchHeader,
    markers: Sequence[tuple[int, int, ControlType | None]],
    open_transactions: Callable[[], Sequence[OpenTransaction]],
) -> State:
    for producer_id, offset, control in markers:
        if producer_id == header.producer_id and offset > header.last_offset:
            return State.ABORTED if control is ControlType.ABORT else State.HELD
    for transaction in open_transactions():
        if (
            transaction.producer_id == header.producer_id
            and transaction.first_offset <= header.last_offset
        ):
            return State.OPEN
    return State.HELD


def _records(
    columns: Columns, partition: int, header: BatchHeader, state: State, kept: int | None
) -> Iterator[ReadRecord]:
    count = columns.row_count
    offsets = struct.unpack(f"{count}q", columns.offsets)
    timestamps = struct.unpack(f"{count}q", columns.timestamps)
    types = bytes(memoryview(columns.timestamp_types))
    keys, values = _column(count, columns.keys), _column(count, columns.values)
    headers = _Headers(columns, count)
    for row in range(count):
        key, value = keys.to_list(row, row + 1)[0], values.to_list(row, row + 1)[0]
        yield ReadRecord(
            partition,
            offsets[row],
            timestamps[row],
            types[row] == 1,
            None if key is None else key[:kept],
            None if value is None else value[:kept],
            len(key or b""),
            len(value or b""),
            headers.of(row, kept),
            state,
            header.is_transactional,
            header.producer_id,
            header.producer_epoch,
            header.compression.name.lower(),
        )


def _column(count: int, buffers: BinaryBuffers) -> BinaryColumn:
    return BinaryColumn(count, 0, buffers.validity, buffers.offsets, buffers.data)


class _Headers:
    """The headers of the records in some columns."""

    def __init__(self, columns: Columns, count: int) -> None:
        assert columns.headers is not None
        self._ends = struct.unpack(f"{count + 1}i", columns.headers.offsets)
        self._names = _column(self._ends[-1], columns.headers.names)
        self._values = _column(self._ends[-1], columns.headers.values)

    def of(self, row: int, kept: int | None) -> tuple[Header, ...]:
        first, end = self._ends[row], self._ends[row + 1]
        if first == end:
            return ()
        pairs = zip(self._names.to_list(first, end), self._values.to_list(first, end), strict=True)
        return tuple(
            Header(
                (name or b"")[:kept].decode("utf-8", "surrogateescape"),
                None if value is None else value[:kept],
                len(value or b""),
            )
            for name, value in pairs
        )


class Reader:
    """Reads the partitions of a topic for one request of a user; one thread at a time."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        kept_bytes: int | None = KEPT_BYTES,
        bytes_max: int = READ_BYTES_MAX,
        seconds_max: float = READ_SECONDS_MAX,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._kept_bytes = kept_bytes
        self._bytes_max = bytes_max
        self._deadline = time.monotonic() + seconds_max
        self._open: dict[int, list[OpenTransaction]] = {}
        self.fetched_bytes = 0

    @property
    def is_spent(self) -> bool:
        """Whether the request has read as much, or for as long, as it may."""
        return self.fetched_bytes >= self._bytes_max or time.monotonic() >= self._deadline

    def one(self, partition: int, offset: int) -> ReadRecord | None:
        """The record at an offset; None if there is none: compacted, a marker, beyond the end."""
        records, _ = self._next(partition, offset, offset + 1, 1)
        return next(records, None)

    def forward(self, partition: int, first: int, end: int) -> Iterator[ReadRecord]:
        """The records of the range, the oldest first, until the reader is spent."""
        size = FIRST_CHUNK_BYTES
        while first < end and not self.is_spent:
            records, following = self._next(partition, first, end, size)
            yield from records
            if following <= first:
                return
            first = following
            size = min(4 * size, CHUNK_BYTES)

    def backward(self, partition: int, first: int, end: int) -> Iterator[ReadRecord]:
        """The same, the newest first: read in windows, each about as large as a chunk."""
        window = FIRST_WINDOW
        while first < end and not self.is_spent:
            start = max(first, end - window)
            before = self.fetched_bytes
            found = list(self._window(partition, start, end))
            yield from reversed(found)
            end = start
            size = max(1, (self.fetched_bytes - before) // max(1, len(found)))
            window = max(1, min(CHUNK_BYTES // size, 4 * window, WINDOW_MAX))
            if len(found) < FIRST_WINDOW:  # sparse: compacted, or many markers
                window = max(window, FIRST_WINDOW)

    def _window(self, partition: int, first: int, end: int) -> Iterator[ReadRecord]:
        while first < end:
            records, following = self._next(partition, first, end, CHUNK_BYTES)
            yield from records
            if following <= first:
                return
            first = following

    def _next(
        self, partition: int, first: int, end: int, bytes_max: int
    ) -> tuple[Iterator[ReadRecord], int]:
        """The next records of the range, and the offset at which to continue."""
        chunk = self._fetch(partition, first, bytes_max)
        self.fetched_bytes += len(chunk.records)
        following = first
        for _, header in iterate_headers(chunk.records):
            following = max(following, header.next_offset)
        records = decode_chunk(
            chunk,
            partition,
            first,
            end,
            open_transactions=lambda: self._open_transactions(partition),
            kept_bytes=self._kept_bytes,
        )
        return records, following

    def _fetch(self, partition: int, offset: int, bytes_max: int) -> Chunk:
        stable = fetch_committed(self._cluster, self._topic, partition, offset, bytes_max=bytes_max)
        if len(stable.records):
            return Chunk(stable.records, stable.aborted, stable.end_offset)
        fetched = fetch_batches(self._cluster, self._topic, partition, offset, bytes_max=bytes_max)
        return Chunk(fetched.records, (), min(fetched.stable_offset, offset))

    def _open_transactions(self, partition: int) -> list[OpenTransaction]:
        if partition not in self._open:
            self._open[partition] = open_transactions(self._cluster, self._topic, partition)
        return self._open[partition]


def open_transactions(cluster: Cluster, topic: str, partition: int) -> list[OpenTransaction]:
    """The transactions that are open in a partition, by DescribeProducers."""
    answer = cluster.ask_leader(
        topic,
        partition,
        "describe_producers",
        {"topics": [{"name": topic, "partition_indexes": [partition]}]},
        error_of=lambda answer: answer.topics[0].partitions[0].error_code,
    )
    found = answer.topics[0].partitions[0]
    check(
        found.error_code,
        found.error_message or f"open transactions of {topic}-{partition}",
        "describe_producers",
    )
    return [
        OpenTransaction(int(it.producer_id), int(it.current_txn_start_offset))
        for it in found.active_producers
        if it.current_txn_start_offset >= 0 and it.producer_id != NO_PRODUCER_ID
    ]
