"""Typed reading: a task's records as rows of the user's schema, and the handling of bad records.

The schema has the columns of the value, and may also name these:

    _key, _value                binary, as they are in the record
    _topic, _partition, _offset string, int, long: the place of the record
    _position                   binary: orders the records of a key (row_positions.py)
    _deleted                    boolean: whether the record has no value
    _timestamp                  timestamp of the record
    _headers                    array<struct<key: string, value: binary>>
    _error                      string: why it did not decode; null for a good record
    _idle                       boolean: whether this is no record but a tick (idleness.py)
    _watermark                  timestamp: the batch's watermark, by which rows are late; null if
                                there is none yet. It needs the option checkpointLocation
    _queries                    long: the end, when the batch was planned, of the topic of standing
                                queries that the option queriesTopic names

A record that does not decode ends the query (mode `fail`), is left out (`drop`), or is written to
the dead-letter topic and left out (`deadletter`). If the schema names `_error`, it becomes a row
that has only these columns, so that a query can count bad records or write them to a table; see
`count_failures` in counting.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.columns import (
    DELETED_COLUMN,
    ERROR_COLUMN,
    IDLE_COLUMN,
    OFFSET_COLUMN,
    POSITION_COLUMN,
    QUERIES_COLUMN,
    WATERMARK_COLUMN,
)
from millstream.pipelines.reading.arrow import raw_batch
from millstream.pipelines.reading.dead_letters import DeadLetters
from millstream.pipelines.reading.decoding import make_decoder
from millstream.pipelines.reading.decoding.results import Decoded, Failure
from millstream.pipelines.reading.fetching import fetch_columns
from millstream.pipelines.reading.shredded import decrypted
from millstream.pipelines.row_positions import Positions, encode_positions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millstream.pipelines.offsets import OffsetRange
    from millstream.pipelines.reading.options import ReadOptions
    from millstream.records.columns import Columns

logger = logging.getLogger(__name__)

# What the reader fills in, as Spark declares it; by name, the raw column it comes from.
METADATA_TYPES = {
    "_key": "binary",
    "_value": "binary",
    "_topic": "string",
    "_partition": "int",
    OFFSET_COLUMN: "bigint",
    POSITION_COLUMN: "binary",
    DELETED_COLUMN: "boolean",
    "_timestamp": "timestamp",
    "_headers": "array<struct<key:string,value:binary>>",
    ERROR_COLUMN: "string",
    IDLE_COLUMN: "boolean",
    WATERMARK_COLUMN: "timestamp",
    QUERIES_COLUMN: "bigint",
}


class TaskConstants(NamedTuple):
    """Values that the driver chooses for all rows of a task."""

    watermark_ms: int | None = None
    log: int = 0  # the task's partition, in `_position`
    queries_end: int | None = None


class RecordFailed(MillstreamError):
    """A record does not decode, and the query is to end with it."""


def typed_options(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options for reading rows of this schema. Raises `ConfigError` if that cannot be done."""
    for field in schema:
        expected = METADATA_TYPES.get(field.name)
        if expected is None and field.name.startswith("_"):
            raise ConfigError(
                f"column {field.name}: names that begin with _ are those of the reader, which "
                f"knows {', '.join(METADATA_TYPES)}"
            )
        if expected is not None and field.dataType.simpleString() != expected:
            raise ConfigError(
                f"column {field.name} is {field.dataType.simpleString()}; it must be {expected}"
            )
    _check_idle(options, schema)
    _check_queries(options, schema)
    wants_headers = "_headers" in schema.names or options.mode == "deadletter"
    options = replace(
        options, row_schema=schema, include_headers=options.include_headers or wants_headers
    )
    make_decoder(options, _value_schema(arrow_schema(schema)))
    return options


def _check_idle(options: ReadOptions, schema: StructType) -> None:
    if (options.idle_after_ms is not None) != (IDLE_COLUMN in schema.names):
        raise ConfigError(
            f"idleAfter and the column {IDLE_COLUMN} boolean belong together: it marks the rows "
            "that are no records. In pipelines, use topic(..., idle_after=...)"
        )
    if options.idle_after_ms is None:
        return
    column = options.idle_column
    kind = schema[column].dataType.simpleString() if column in schema.names else "not there"
    if kind != "timestamp":
        raise ConfigError(f"idleColumn {column!r} is {kind}; it must be a timestamp of the schema")


def _check_queries(options: ReadOptions, schema: StructType) -> None:
    if (options.queries_topic is not None) != (QUERIES_COLUMN in schema.names):
        raise ConfigError(
            f"queriesTopic and the column {QUERIES_COLUMN} bigint belong together: it has the end "
            "of that topic. In pipelines, use topic(..., queries=...)"
        )


def idle_row(options: ReadOptions, time_ms: int) -> pa.RecordBatch:
    """A tick: no record, but a time up to which there was none."""
    assert options.row_schema is not None
    schema = arrow_schema(options.row_schema)
    values = {options.idle_column: time_ms * 1000, IDLE_COLUMN: True}
    arrays = [_filled(it, pa.array([values.get(it.name)], it.type)) for it in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema as Spark wants it back, to the last detail."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _value_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in METADATA_TYPES])


def typed_batches(
    options: ReadOptions, wanted: OffsetRange, constants: TaskConstants
) -> Iterator[pa.RecordBatch]:
    """What a task yields for its range: rows of `options.row_schema`."""
    assert options.row_schema is not None
    schema = arrow_schema(options.row_schema)
    decoder = make_decoder(options, _value_schema(schema))
    counts: Counter[str] = Counter()
    letters = DeadLetters(options, wanted)
    try:
        for columns in fetch_columns(options, wanted):
            readable = decrypted(options, wanted.topic, columns)
            decoded = decoder.decode(readable)
            if decoded.failures:
                counts.update(failure.reason for failure in decoded.failures)
                _handle(options, wanted, columns, decoded.failures, letters)  # encrypted, if so
            yield assemble(schema, wanted, readable, decoded, constants)
    except GeneratorExit:
        letters.flush()  # Spark has rows enough: this task ends well, too
        raise
    letters.flush()
    if counts:
        _report(options, wanted, counts)


def _handle(
    options: ReadOptions,
    wanted: OffsetRange,
    columns: Columns,
    failures: list[Failure],
    letters: DeadLetters,
) -> None:
    if options.mode == "deadletter":
        letters.add(columns, failures)
    elif options.mode == "fail":
        first = failures[0]
        offset = memoryview(columns.offsets).cast("q")[first.row]
        raise RecordFailed(
            f"the record at {wanted.topic}[{wanted.partition}]@{offset} is no "
            f"{options.value_format} row of the schema: {first.reason}: {first.message}. "
            "To go on without such records, set the option mode to deadletter (they go to a "
            "dead-letter topic) or to drop"
        )


def _report(options: ReadOptions, wanted: OffsetRange, counts: Counter[str]) -> None:
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    what = "dropped"
    if options.mode == "deadletter":
        topic = options.dead_letters_of(wanted.topic)
        what = f"written to {topic}" if topic else "left there: it is a dead-letter topic itself"
    logger.warning(
        "%s[%d], offsets %d to %d: %d records did not decode (%s) and were %s",
        wanted.topic,
        wanted.partition,
        wanted.start,
        wanted.end,
        counts.total(),
        reasons,
        what,
    )


def assemble(
    schema: pa.Schema,
    wanted: OffsetRange,
    columns: Columns,
    decoded: Decoded,
    constants: TaskConstants,
) -> pa.RecordBatch:
    """The decoded rows with the reader's own columns, in the order of the schema."""
    if all(name not in METADATA_TYPES for name in schema.names):
        return decoded.batch
    raw = raw_batch(wanted.topic, wanted.partition, columns)
    rows = decoded.rows
    values = decoded.batch
    errors = None
    if ERROR_COLUMN in schema.names:
        rows = None
        errors = _errors(columns.row_count, decoded.failures)
        values = _with_gaps(values, columns.row_count, decoded)
    count = columns.row_count if rows is None else len(rows)
    arrays: list[Any] = []
    for field in schema:
        if field.name == ERROR_COLUMN:
            arrays.append(errors)
        elif field.name == WATERMARK_COLUMN:
            watermark_ms = constants.watermark_ms
            watermark_us = None if watermark_ms is None else watermark_ms * 1000
            arrays.append(pa.repeat(pa.scalar(watermark_us, field.type), count))
        elif field.name == QUERIES_COLUMN:
            arrays.append(pa.repeat(pa.scalar(constants.queries_end, field.type), count))
        elif field.name in METADATA_TYPES:
            array = _metadata(field.name, raw, columns, constants)
            array = array if rows is None else array.take(rows)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        else:
            arrays.append(values.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _metadata(
    name: str, raw: pa.RecordBatch, columns: Columns, constants: TaskConstants
) -> pa.Array:
    if name == POSITION_COLUMN:
        times_ms, offsets = (
            np.frombuffer(memoryview(it), np.int64) for it in (columns.timestamps, columns.offsets)
        )
        logs = np.full(len(offsets), constants.log, np.int64)
        return encode_positions(Positions(times_ms, logs, offsets))
    if name == IDLE_COLUMN:
        return pa.array(np.zeros(raw.num_rows, np.bool_))
    if name == DELETED_COLUMN:
        return raw.column("value").is_null()
    return raw.column(name.removeprefix("_"))


def _errors(count: int, failures: list[Failure]) -> pa.Array:
    if not failures:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    for failure in failures:
        texts[failure.row] = f"{failure.reason}: {failure.message}"
    return pa.array(texts, pa.string())


def _with_gaps(values: pa.RecordBatch, count: int, decoded: Decoded) -> pa.RecordBatch:
    """The good rows at their numbers, and at those of the others nulls, or zeros where the schema
    has no nulls: Spark relies on that."""
    if decoded.rows is None:
        return values
    places = pc.index_in(pa.array(range(count), pa.int64()), decoded.rows)
    spread = values.take(places)
    arrays = [_filled(it, spread.column(index)) for index, it in enumerate(values.schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=values.schema)


def _filled(field: pa.Field, array: pa.Array) -> pa.Array:
    """`array`, without nulls unless the field may have them."""
    kind = field.type
    if field.nullable or array.null_count == 0:
        return array
    if pa.types.is_struct(kind):
        children = [_filled(it, array.field(index)) for index, it in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return array.fill_null(pa.scalar([], kind))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return array.fill_null(pa.scalar(b"", pa.binary()).cast(kind))
    return array.fill_null(pa.scalar(False if pa.types.is_boolean(kind) else 0, kind))
