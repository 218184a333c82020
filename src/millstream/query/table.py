"""A topic as a table of DuckDB: an Arrow dataset whose scanner reads the topic.

DuckDB asks the scanner for some columns, with a filter, and applies neither again. `to_reader` of
the scanner is read batch by batch: when DuckDB has rows enough, it lets go of the reader, and the
scan stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from millstream.client.cluster import Cluster
from millstream.client.offsets import NONE_AS_NEW, list_offsets
from millstream.errors import MillstreamError
from millstream.query.archived import Archives, first_as_new
from millstream.query.fetching import Source
from millstream.query.pushdown import TimeBounds, columns_in, matching_ranges, time_bounds
from millstream.query.ranges import ScanRange, without_empty
from millstream.query.scanning import ClusterPool, Progress, Scan, Shape, ValueDecoder


class TopicTable(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """See the module. `ranges` are all offsets that the table has."""

    def __init__(
        self,
        pool: ClusterPool,
        source: Source,
        ranges: Sequence[ScanRange],
        schema: pa.Schema,
        *,
        progress: Progress | None = None,
        make_decoder: Callable[[frozenset[str]], ValueDecoder] | None = None,
        stop: threading.Event | None = None,
        archives: Archives | None = None,
    ) -> None:
        # Not Dataset's own __init__, which refuses: this is no dataset of Arrow's.
        self.pool, self.source = pool, source
        self.ranges = tuple(ranges)
        self.progress = progress or Progress()
        self.stop = stop or threading.Event()
        self.archives = archives or {}
        self.read_ranges: tuple[ScanRange, ...] = ()  # of the last scan, after push-down
        self.error: MillstreamError | None = None  # that ended a scan; DuckDB wraps it in its own
        self._table_schema = schema
        self._make_decoder = make_decoder

    @property
    def schema(self) -> pa.Schema:
        return self._table_schema

    def scanner(
        self, columns: list[str] | None = None, filter: Any = None, **options: Any
    ) -> _Scanner:
        """What DuckDB calls: a reader of these columns of the rows that match."""
        names = self._table_schema.names if columns is None else columns
        schema = pa.schema([self._table_schema.field(name) for name in names])
        return _Scanner(self, Shape(schema, filter, columns_in(filter, self._table_schema)))

    def start(self, shape: Shape) -> Scan:
        ranges = matching_ranges(shape.condition, self.ranges, self._table_schema)
        bounds = time_bounds(shape.condition, self._table_schema)
        with self.pool.lend() as cluster:
            self.read_ranges = bounded_by_time(
                cluster, self.source.topic, ranges, bounds, self.archives
            )
        return Scan(
            self.pool,
            self.source,
            self.read_ranges,
            shape,
            self._table_schema,
            self.progress,
            self._make_decoder,
            self.stop,
            self.archives,
        )


class _Scanner:
    """The part of `pyarrow.dataset.Scanner` that DuckDB uses."""

    def __init__(self, table: TopicTable, shape: Shape) -> None:
        self._table, self._shape = table, shape
        self.projected_schema = shape.schema
        self.dataset_schema = table.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._shape.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._table.start(self._shape).batches()
        except MillstreamError as error:
            self._table.error = error
            raise


def bounded_by_time(
    cluster: Cluster,
    topic: str,
    ranges: Sequence[ScanRange],
    bounds: TimeBounds,
    archives: Archives | None = None,
) -> tuple[ScanRange, ...]:
    """The ranges from the first record that is as new as the lower bound on.

    The upper bound does not end them: producers set timestamps, and a later record may be older.
    Brokers need not know of an archive, so that its own times say what of it is read.
    """
    if bounds.are_empty:
        return ()
    if bounds.first_ms is None or bounds.first_ms < 0 or not ranges:
        return tuple(ranges)
    places = {(topic, it.partition) for it in ranges}
    firsts = list_offsets(cluster, dict.fromkeys(places, bounds.first_ms))
    bounded = []
    for it in ranges:
        first: int | None = firsts[topic, it.partition]
        part = (archives or {}).get(it.partition)
        archived = None if part is None else first_as_new(part, bounds.first_ms)
        if archived is not None:
            first = archived
        elif first == NONE_AS_NEW:
            first = None
        if first is not None:
            bounded.append(ScanRange(it.partition, max(it.first, first), it.end))
    return without_empty(bounded)
