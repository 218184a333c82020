"""What goes in: rows or strategies for them, the columns, the time, the watermark.

Rows are dicts; a column that is left out is null, except `_offset`, which is the row's place in its
input, and `_position`: its place in a topic that gets a new partition every few rows, to which all
keys move. A table (`table_key`) has its key, its columns and `_deleted`, true for a delete. Moments
may be written as text, "2026-01-01 10:00:05", in UTC.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.columns import QUERIES_COLUMN
from millstream.pipelines.durations import duration_us
from millstream.pipelines.pipeline import Pipeline, pipeline
from millstream.pipelines.spec import Topic, table, topic
from millstream.testing.streams.case import Arrival, Batch, Row

if TYPE_CHECKING:
    import pyarrow as pa
    from hypothesis.strategies import SearchStrategy
    from pyspark.sql.types import StructType

    from millstream.pipelines.standing.stored import QueryRecord

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OFFSET = "_offset"
PARTITION_ROWS = 4  # after which all keys move to another partition
NO_SOURCE = "Source([])"
QUERY_EXAMPLE = '("cheap", "price < 3", "2026-01-01 00:00:00")'
StandingQuery: TypeAlias = "tuple[str, str | None, datetime | str]"
EXAMPLE = 'Source(rows, schema="id long, at timestamp", watermark=("at", "1 minute"))'


@dataclass(frozen=True)
class Source:
    """An input: rows in a list, or a Hypothesis strategy for one row.

    `schema` and `watermark` are those of the topic, and only needed where there is none: for a
    plain function. `time` orders the rows of an input that has no watermark. `queries` are the
    standing queries of the topic: the id, the condition or None to remove it, and the moment.
    """

    rows: Sequence[Row] | SearchStrategy[Any]
    schema: str | StructType | None = None
    watermark: tuple[str, str] | None = None
    time: str | None = None
    queries: Sequence[StandingQuery] | None = None


def source_text(source: Source) -> str:
    """A source without its rows, as code; `NO_SOURCE` if it tells no more than the topic does."""
    told = {
        "schema": source.schema,
        "watermark": source.watermark,
        "time": source.time,
        "queries": source.queries,
    }
    given = [
        f"{name}={it!r}" if isinstance(it, str | tuple) else f"{name}=..."
        for name, it in told.items()
        if it is not None
    ]
    return f"Source([], {', '.join(given)})" if given else NO_SOURCE


@dataclass(frozen=True)
class Input:
    """An input with all that is known of it; `arrow` and `schema` without what the reader adds."""

    name: str
    schema: StructType
    arrow: pa.Schema
    time: str | None
    delay_us: int | None  # of the watermark; None if there is none
    queries_topic: str | None = None
    queries: tuple[QueryRecord, ...] = ()

    def time_us(self, row: Row) -> int | None:
        """When it happened; None if it does not say."""
        moment = None if self.time is None else row.get(self.time)
        return None if moment is None else moment_us(as_moment(moment))

    def queries_end(self, row: Row) -> int:
        """The end of the records of queries that are as old as the row, or older; all of them if
        the row has no time."""
        time_us = self.time_us(row)
        ends = (
            place
            for place, it in enumerate(self.queries, 1)
            if time_us is None or it.timestamp_ms * 1000 <= time_us
        )
        return max(ends, default=0)

    def with_all_queries(self, row: Row) -> Row:
        """The row as a batch has it, which is planned when all queries are there."""
        return {**row, QUERIES_COLUMN: len(self.queries)} if self.queries_topic else row

    def table_of(self, rows: Sequence[Row]) -> pa.Table:
        """Raises `ConfigError` for rows that do not fit."""
        import pyarrow as pa

        for row in rows:
            unknown = row.keys() - set(self.arrow.names)
            if unknown:
                raise ConfigError(
                    f"{self.name}: a row has {', '.join(map(repr, sorted(unknown)))}, and the "
                    f"columns are {', '.join(self.arrow.names)}"
                )
        try:
            columns = [
                pa.array([_fit(row.get(field.name), field.type) for row in rows], field.type)
                for field in self.arrow
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
            raise ConfigError(f"{self.name}: a row does not fit its schema: {error}") from None
        return pa.Table.from_arrays(columns, schema=self.arrow)


@dataclass(frozen=True)
class Definition:
    """A pipeline and its inputs, ready to be run."""

    pipeline: Pipeline
    inputs: Mapping[str, Input]
    sources: Mapping[str, Source]

    @property
    def name(self) -> str:
        return self.pipeline.name


def define(
    given: Pipeline | Callable[..., Any], sources: Mapping[str, Any], key: Sequence[str] = ()
) -> Definition:
    """Raises `ConfigError` where something is missing."""
    by_name = {
        name: it if isinstance(it, Source) else Source(it) for name, it in dict(sources).items()
    }
    declared = given if isinstance(given, Pipeline) else _declare(given, by_name, key)
    missing = declared.reads.keys() - by_name.keys()
    unknown = by_name.keys() - declared.reads.keys()
    if missing or unknown:
        raise ConfigError(
            f"{declared.name} reads {', '.join(declared.reads)}, and there are rows for "
            f"{', '.join(by_name) or 'nothing'}: give rows, or a strategy, for each parameter"
        )
    inputs = {
        name: with_queries(make_input(name, read, by_name[name].time), read, by_name[name])
        for name, read in declared.reads.items()
    }
    return Definition(declared, inputs, by_name)


def make_input(name: str, read: Topic, time: str | None) -> Input:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from millstream.pipelines.columns import WATERMARK_COLUMN
    from millstream.pipelines.reading.arrow import RAW_SCHEMA
    from millstream.pipelines.running.launching import with_columns
    from millstream.pipelines.running.tables import table_schema

    read = with_columns(read)
    found = read.schema or RAW_SCHEMA
    schema = StructType.fromDDL(found) if isinstance(found, str) else found
    if read.table_key:
        schema = table_schema(read)
    assert isinstance(schema, StructType)
    rows = StructType([it for it in schema.fields if it.name != WATERMARK_COLUMN])
    if read.queries and QUERIES_COLUMN not in rows.names:
        rows = schema = StructType([*rows.fields]).add(QUERIES_COLUMN, "long")
    if read.watermark is not None and read.schema is not None:
        schema = StructType([*rows.fields]).add(WATERMARK_COLUMN, "timestamp")  # as the reader does
    column, delay = read.watermark or (time, None)
    if column is not None and column not in schema.names:
        raise ConfigError(f"{name}: there is no column {column!r}: {', '.join(schema.names)}")
    delay_us = None if delay is None else duration_us(delay, "watermark", zero_allowed=True)
    arrow = to_arrow_schema(rows, timezone="UTC", prefers_large_types=False)
    return Input(name, schema, _nullable(arrow), column, delay_us)


def with_queries(made: Input, read: Topic, source: Source) -> Input:
    """The input with its standing queries. Raises `ConfigError` if there are none."""
    from millstream.pipelines.standing.stored import QueryRecord

    if not read.queries:
        return made
    if source.queries is None:
        raise ConfigError(
            f"{made.name} is read with standing queries: give them, "
            f"Source(rows, queries=[{QUERY_EXAMPLE}])"
        )
    records = []
    for offset, (query_id, where, moment) in enumerate(source.queries):
        value = None if where is None else json.dumps({"where": where}).encode()
        time_ms = moment_us(as_moment(moment)) // 1000
        records.append(QueryRecord(offset, time_ms, query_id.encode(), value))
    return replace(made, queries_topic=read.queries, queries=tuple(records))


def with_queries_end(batch: Batch, inputs: Mapping[str, Input], ends: dict[str, int]) -> Batch:
    """The rows of a batch with the end of the queries' topic when it is planned: at least all
    queries are there that are as old as one of its rows; notes it in `ends`."""
    for it in batch.arrivals:
        ends[it.input] = max(ends.get(it.input, 0), inputs[it.input].queries_end(it.row))
    arrivals = tuple(
        replace(it, row={**it.row, QUERIES_COLUMN: ends[it.input]})
        if inputs[it.input].queries_topic
        else it
        for it in batch.arrivals
    )
    return replace(batch, arrivals=arrivals)


def _nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(it.name, it.type) for it in schema])


def _declare(
    function: Callable[..., Any], sources: Mapping[str, Source], key: Sequence[str]
) -> Pipeline:
    """A plain function as a pipeline: its parameters are topics, its result is a table."""
    name = getattr(function, "__name__", "pipeline").strip("<>")
    for parameter, source in sources.items():
        if source.schema is None:
            raise ConfigError(
                f"{name} is a plain function, so {parameter} needs its columns: {EXAMPLE}"
            )
    if not sources:
        signature = inspect.signature(function)
        raise ConfigError(f"{name}{signature}: give rows for each parameter: {EXAMPLE}")
    reads = {
        it: topic(
            it,
            schema=source.schema,
            watermark=source.watermark,
            queries=None if source.queries is None else f"{it}-queries",
        )
        for it, source in sources.items()
    }
    writes = table("result", key=tuple(key))
    return pipeline(reads=reads, writes=writes, name=name)(function)


def with_offset(arrival: Arrival, inputs: Mapping[str, Input], counts: dict[str, int]) -> Arrival:
    """The row with its place in its input, if there are columns for it; notes it in `counts`."""
    from millstream.pipelines.columns import POSITION_COLUMN

    name, row = arrival.input, arrival.row
    place = counts[name] = counts.get(name, -1) + 1
    filled = {OFFSET: place, POSITION_COLUMN: _position(place)}
    missing = {
        column: value
        for column, value in filled.items()
        if column in inputs[name].arrow.names and column not in row
    }
    return replace(arrival, row={**row, **missing}) if missing else arrival


def _position(place: int) -> bytes:
    """Offsets begin again in each partition."""
    import numpy as np

    from millstream.pipelines.row_positions import Positions, encode_positions

    log, offset = divmod(place, PARTITION_ROWS)
    columns = [np.array([it], np.int64) for it in (place, log, offset)]
    position: bytes = encode_positions(Positions(*columns))[0].as_py()
    return position


def moments(span: str | timedelta, step: str | timedelta = "1 second") -> SearchStrategy[datetime]:
    """A strategy for moments from 2026-01-01 on, as far as `span`, a `step` apart."""
    from hypothesis import strategies

    step_us = duration_us(step, "step")
    places = strategies.integers(0, duration_us(span, "span") // step_us)
    return places.map(lambda it: BEGIN + timedelta(microseconds=it * step_us))


def as_moment(given: datetime | str) -> datetime:
    """Text or a datetime as a moment in UTC. Raises `ConfigError`."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            raise ConfigError(
                f'{given!r} is no moment: write it like "2026-01-01 10:00:05"'
            ) from None
    return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)


def moment_us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment_of_us(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


def _fit(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if isinstance(value, str) and pa.types.is_timestamp(kind):
        moment = as_moment(value)
        return moment if kind.tz else moment.replace(tzinfo=None)
    if isinstance(value, str) and pa.types.is_date(kind):
        return date.fromisoformat(value)
    return value
