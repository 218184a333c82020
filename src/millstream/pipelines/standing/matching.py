"""Standing queries: rows with the stored queries that match them.

    @pipeline(reads=topic("offers", schema="...", queries="searches"), writes=topic("alerts"))
    def alerts(offers):
        return offers.transform(match_queries, time="at")

For each row and each query that is true for it, the result has the row with the columns

    _query      string          the id of the query
    _version    long            the version of the query: the offset of its record
    _why        array<string>   the conditions that are true and make the query true

`time` is the time of the event. The versions count that are in force at that time (stored.py); a
row without a time matches nothing. The result of a stream is that of a batch, if no event has a
time in the future of the broker's clock: a batch is planned with the end of the queries' topic
after the ends of the events, so it has all queries that are older than its events. Without `time`,
the newest queries at the time when the batch was planned count, and the result depends on how the
stream is cut into batches.

Nothing is shuffled, and no state is kept: workers have an index of the queries (loading.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import QUERIES_COLUMN, check_time
from millstream.pipelines.hidden import hide_again, show_watermark
from millstream.pipelines.joins.frames import keep_watermark
from millstream.pipelines.reading.positions import Positions
from millstream.pipelines.standing.events import Rows
from millstream.pipelines.standing.kinds import numbers_of
from millstream.pipelines.standing.loading import QuerySource, is_first_task, loaded
from millstream.pipelines.standing.stored import (
    MATCHES,
    NO_TIME,
    SCANS_MAX,
    QueryRecord,
    StoredQueries,
)
from millstream.pipelines.standing.topic import reading_options
from millstream.pipelines.workers import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERIES_SOURCE = "millstream.queries"  # metadata of the column _queries
ROWS_AT_ONCE = 10_000
RESULTS_AT_ONCE = 100_000  # about; rows that match many queries are matched a few at a time

# The options of the readers of pipelines, by the metadata of their frames: they can have secrets,
# which are not to be in plans.
_readers: dict[str, _Reader] = {}


class _Reader(NamedTuple):
    """Where queries are: a topic, or records in its place."""

    topic: str
    options: Mapping[str, str]
    records: tuple[QueryRecord, ...] | None = None


def mark_queries(
    frame: DataFrame,
    topic: str,
    options: Mapping[str, str],
    records: tuple[QueryRecord, ...] | None = None,
) -> DataFrame:
    """The frame of a reader with `_queries`, so that `match_queries` finds the topic, or the
    records that a test has in its place."""
    place = options.get("kafka.bootstrap.servers", "") if records is None else hash(records)
    key = f"{place}/{topic}"
    _readers[key] = _Reader(topic, options, records)
    return frame.withMetadata(QUERIES_COLUMN, {QUERIES_SOURCE: key})


def match_queries(
    frame: DataFrame,
    queries: str | None = None,
    *,
    time: str | None,
    options: Mapping[str, str] | None = None,
    scans_max: int = SCANS_MAX,
) -> DataFrame:
    """Rows with the stored queries that match them; see the head of this module.

    `queries` names the topic, and `options` are those of the reader (`kafka.bootstrap.servers`);
    in a pipeline, `topic(..., queries=...)` has both. `scans_max` is the number of queries that may
    be evaluated for every row because no index helps to find them. Raises `ConfigError`.
    """
    from pyspark.sql.functions import lit
    from pyspark.sql.pandas.types import from_arrow_schema

    from millstream.pipelines.state.spark import arrow_schema

    given, frame = frame, show_watermark(frame)
    topic, found, records = _source(frame, queries, options)
    read = reading_options(found, topic) if records is None else None
    if read is not None and QUERIES_COLUMN not in frame.columns:
        _refuse_stream(frame, topic)
        positions = Positions(read)
        try:
            end = positions.queries_end()
            assert end is not None  # the options name a topic
            frame = frame.withColumn(QUERIES_COLUMN, lit(end.end).cast("bigint"))
        finally:
            positions.close()
    if time is not None:
        check_time(frame, time)
    taken = [it for it in MATCHES.names if it in frame.columns]
    if taken:
        raise ConfigError(f"the result would have two columns {taken[0]}: rename one of them")
    if scans_max < 0:
        raise ConfigError(f"scans_max={scans_max}: it must be at least 0")
    inner = arrow_schema(frame.schema)
    events = pa.schema([it for it in inner if it.name != QUERIES_COLUMN])
    source = QuerySource(uuid.uuid4().hex, topic, read, events, scans_max, records)
    whole = from_arrow_schema(pa.schema([*events, *MATCHES]))
    matched = frame.mapInArrow(_runner(source, inner, time), whole)
    return hide_again(keep_watermark(matched, frame.drop(QUERIES_COLUMN)), given)


def _source(frame: DataFrame, queries: str | None, options: Mapping[str, str] | None) -> _Reader:
    if options is not None and queries is not None:
        return _Reader(queries, options)
    key = ""
    if QUERIES_COLUMN in frame.columns:
        key = frame.schema[QUERIES_COLUMN].metadata.get(QUERIES_SOURCE, "")
    if key not in _readers:
        raise ConfigError(
            "match_queries needs the topic of the queries: declare it in the pipeline, "
            'topic(..., queries="searches"), and keep the column _queries; or pass '
            'match_queries(frame, "searches", options={"kafka.bootstrap.servers": ...})'
        )
    reader = _readers[key]
    if queries not in (None, reader.topic):
        raise ConfigError(
            f"match_queries is to use topic {queries}, and the frame is read with {reader.topic}: "
            f'declare topic(..., queries="{queries}")'
        )
    return reader


def _refuse_stream(frame: DataFrame, topic: str) -> None:
    if frame.isStreaming:
        raise ConfigError(
            f"a stream needs the column {QUERIES_COLUMN}, so that a repeated batch has the same "
            f'queries: declare topic(..., queries="{topic}") and keep the column; without a '
            f'pipeline, add "{QUERIES_COLUMN} bigint" to the schema of the reader and the option '
            f'queriesTopic="{topic}"'
        )


def _runner(source: QuerySource, inner: pa.Schema, time: str | None) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queries = loaded(source)
        for batch in batches:
            if not batch.num_rows:
                continue
            batch = batch.cast(inner)
            for end, rows in by_end(batch):
                stored = queries.at(end, writes_letters=is_first_task())
                yield from match_in_pieces(stored, rows, time)
        freeze_imports("match_queries")

    return run


def by_end(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """The rows without `_queries`, by its values, which rise; usually there is one."""
    ends = batch.column(QUERIES_COLUMN).to_numpy(zero_copy_only=False)
    rows = batch.drop_columns([QUERIES_COLUMN])
    distinct = np.unique(ends)
    if len(distinct) == 1:
        return [(int(distinct[0]), rows)]
    return [(int(it), rows.filter(pa.array(ends == it))) for it in distinct]


def match_in_pieces(
    stored: StoredQueries, rows: pa.RecordBatch, time: str | None
) -> Iterator[pa.RecordBatch]:
    """The results for slices of the rows; each slice is as long as the results of the one before
    it suggest."""
    start, length = 0, ROWS_AT_ONCE // 10
    while start < rows.num_rows:
        piece = rows.slice(start, length)
        found = match_rows(stored, piece, time)
        yield found
        start += piece.num_rows
        per_row = max(found.num_rows / piece.num_rows, RESULTS_AT_ONCE / ROWS_AT_ONCE)
        length = max(int(RESULTS_AT_ONCE / per_row), 1)


def match_rows(stored: StoredQueries, rows: pa.RecordBatch, time: str | None) -> pa.RecordBatch:
    """Rows with the columns of the queries that match them."""
    found = stored.match(rows, None if time is None else _times_us(rows.column(time)))
    taken = rows.take(pa.array(found.rows))
    schema = pa.schema([*rows.schema, *MATCHES])
    return pa.RecordBatch.from_arrays([*taken.columns, *found.columns.columns], schema=schema)


def _times_us(column: pa.Array) -> Rows:
    times: Rows = numbers_of(column, "time")
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        times = np.where(is_null, NO_TIME, times)
    return times
