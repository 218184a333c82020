"""Scanning ranges of a topic with several threads, as a stream of Arrow batches.

Each thread reads one range after the other over its own connection, decodes the records, applies
the filter, and puts batches into a bounded queue: fetching, decompressing, decoding and filtering
release the GIL. A scan that nobody reads any more is stopped by `close`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from millstream.client.cluster import Cluster
from millstream.query.archived import ArchivedReader, Archives
from millstream.query.columns import HEADERS, RECORD_COLUMNS, record_array
from millstream.query.fetching import RangeReader, Source
from millstream.query.ranges import ScanRange, total_size, without_empty
from millstream.records.columns import Columns

THREADS_MAX = 4
BATCHES_WAITING = 2  # per thread
POLL_SECONDS = 0.1  # how often a thread whose queue is full looks whether to stop


class ValueDecoder(Protocol):
    """Makes the columns of the value; used by one thread at a time."""

    def decode(
        self,
        topic: str,
        partition: int,
        columns: Columns,
        rows_wanted: Callable[[], set[int] | None],
    ) -> dict[str, pa.Array]: ...


class ClusterPool:
    """Connections to a cluster, one `Cluster` for each thread that needs one at the same time."""

    def __init__(self, make: Callable[[], Cluster]) -> None:
        self._make = make
        self._idle: list[Cluster] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Cluster]:
        with self._lock:
            cluster = self._idle.pop() if self._idle else self._make()
        try:
            yield cluster
        finally:
            with self._lock:
                self._idle.append(cluster)

    def close(self) -> None:
        with self._lock:
            for cluster in self._idle:
                cluster.close()
            self._idle.clear()


@dataclass
class Progress:
    """How far the scans of a query are; shared by their threads."""

    total: int = 0  # offsets to read
    scanned: int = 0  # offsets passed
    size_bytes: int = 0  # as fetched
    rows: int = 0  # records decoded
    warnings: list[str] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, offsets: int) -> None:
        with self.lock:
            self.total += offsets

    def add(self, offsets: int, size_bytes: int, rows: int) -> None:
        with self.lock:
            self.scanned += offsets
            self.size_bytes += size_bytes
            self.rows += rows

    def warn(self, message: str) -> None:
        with self.lock:
            if message not in self.warnings:
                self.warnings.append(message)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def rate(self) -> float:
        """Offsets per second."""
        return self.scanned / max(self.seconds, 1e-6)

    @property
    def remaining_seconds(self) -> float | None:
        """None while nothing is known."""
        if not self.scanned:
            return None
        return max(self.total - self.scanned, 0) / self.rate


@dataclass(frozen=True)
class Shape:
    """What the batches of a scan consist of."""

    schema: pa.Schema  # of the result
    condition: Any = None  # an Arrow expression; rows for which it does not hold are left out
    condition_columns: frozenset[str] = frozenset()

    @property
    def needed(self) -> frozenset[str]:
        return self.condition_columns.union(self.schema.names)

    @property
    def needs_headers(self) -> bool:
        return HEADERS in self.needed


class Scan:
    """See the module."""

    def __init__(
        self,
        pool: ClusterPool,
        source: Source,
        ranges: Sequence[ScanRange],
        shape: Shape,
        table_schema: pa.Schema,
        progress: Progress,
        make_decoder: Callable[[frozenset[str]], ValueDecoder] | None = None,
        stop: threading.Event | None = None,
        archives: Archives | None = None,
    ) -> None:
        self._pool, self._source, self._shape = pool, source, shape
        self._archives = archives or {}
        self._table_schema = table_schema
        self._progress = progress
        self._make_decoder = make_decoder
        self._cancelled = stop or threading.Event()  # of the whole query
        self._stop = threading.Event()
        wanted = without_empty(ranges)
        progress.expect(total_size(wanted))
        self._waiting = deque(wanted)
        self._thread_count = min(len(wanted), THREADS_MAX)
        self._ready: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(
            BATCHES_WAITING * max(self._thread_count, 1)
        )
        self._threads: list[threading.Thread] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches, as they come: those of a partition in order."""
        self._threads = [
            threading.Thread(target=self._work, name="millstream-scan", daemon=True)
            for _ in range(self._thread_count)
        ]
        for thread in self._threads:
            thread.start()
        running = len(self._threads)
        try:
            while running:
                found = self._ready.get()
                if found is None:
                    running -= 1
                elif isinstance(found, BaseException):
                    raise found
                else:
                    yield found
        finally:
            self.close()

    def close(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        try:
            with self._pool.lend() as cluster:
                self._read_all(cluster)
        except BaseException as error:  # noqa: BLE001 (raised again in the reader's thread)
            self._put(error)
        self._put(None)

    def _read_all(self, cluster: Cluster) -> None:
        wants_values = not self._shape.needed <= RECORD_COLUMNS or "_error" in self._shape.needed
        decoder = None
        if wants_values and self._make_decoder is not None:
            decoder = self._make_decoder(self._shape.needed)
        reader = self._reader(cluster)
        while self._waiting and not self._is_stopped():
            try:
                wanted = self._waiting.popleft()
            except IndexError:
                return
            position = wanted.first
            for step in reader.read(wanted):
                rows = step.columns.row_count if step.columns is not None else 0
                if step.columns is not None:
                    self._put(self._batch(wanted.partition, step.columns, decoder))
                self._progress.add(step.next_offset - position, step.size_bytes, rows)
                position = step.next_offset
                if self._is_stopped():
                    return
            if not self._is_stopped():  # offsets that were skipped are passed, too
                self._progress.add(wanted.end - position, 0, 0)

    def _reader(self, cluster: Cluster) -> RangeReader | ArchivedReader:
        with_headers, stop = self._shape.needs_headers, self._stop
        brokers = RangeReader(
            cluster,
            self._source,
            with_headers=with_headers,
            stop=stop,
            warn=self._progress.warn,
        )
        if not self._archives:
            return brokers
        return ArchivedReader(
            brokers,
            self._source,
            self._archives,
            with_headers=with_headers,
            stop=stop,
            warn=self._progress.warn,
        )

    def _is_stopped(self) -> bool:
        if self._cancelled.is_set():
            self._stop.set()
        return self._stop.is_set()

    def _batch(
        self, partition: int, columns: Columns, decoder: ValueDecoder | None
    ) -> pa.RecordBatch:
        topic = self._source.topic
        values = {}
        if decoder is not None:
            values = decoder.decode(
                topic, partition, columns, lambda: self._rows_wanted(partition, columns)
            )
        fields = [field for field in self._table_schema if field.name in self._shape.needed]
        arrays = [
            values[field.name]
            if field.name in values
            else record_array(field.name, topic, partition, columns)
            for field in fields
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        if self._shape.condition is not None:
            batch = batch.filter(self._shape.condition)
        return batch.select(self._shape.schema.names)

    def _rows_wanted(self, partition: int, columns: Columns) -> set[int] | None:
        """The numbers of the rows that match the condition, if that does not depend on values;
        None: perhaps all of them."""
        used = sorted(self._shape.condition_columns)
        if self._shape.condition is None or not RECORD_COLUMNS.issuperset(used):
            return None
        arrays = [record_array(it, self._source.topic, partition, columns) for it in used]
        arrays.append(pa.array(range(columns.row_count), pa.int64()))
        batch = pa.RecordBatch.from_arrays(arrays, names=[*used, "#row"])
        return set(batch.filter(self._shape.condition)["#row"].to_pylist())

    def _put(self, item: pa.RecordBatch | BaseException | None) -> None:
        if isinstance(item, pa.RecordBatch) and item.num_rows == 0:
            return
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=POLL_SECONDS)
                return
            except queue.Full:
                self._is_stopped()
