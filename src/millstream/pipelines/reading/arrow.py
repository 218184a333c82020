"""Columns of records as Arrow batches in the shape that Spark's Kafka connector gives them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

from millstream.records.columns import BinaryBuffers, Columns

RAW_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
HEADERS_SCHEMA = ", headers array<struct<key: string, value: binary>>"
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TIMESTAMP_MS = pa.timestamp("ms", tz="UTC")
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
_ARROW_SCHEMA_WITH_HEADERS = _ARROW_SCHEMA.append(pa.field("headers", pa.list_(_HEADER)))
CONSTANT_ROOM_MIN = 1024
CONSTANTS_KEPT = 16


def raw_batch(topic: str, partition: int, columns: Columns) -> pa.RecordBatch:
    """The records with the columns of the Kafka connector."""
    count = columns.row_count
    moments = _numbers(_TIMESTAMP_MS, columns.timestamps, count)
    arrays: list[Any] = [
        binary_array(columns.keys, count),
        binary_array(columns.values, count),
        _constant(topic, pa.string(), count),
        _constant(partition, pa.int32(), count),
        _numbers(pa.int64(), columns.offsets, count),
        moments.cast(_TIMESTAMP),
        _numbers(pa.uint8(), columns.timestamp_types, count).cast(pa.int32()),
    ]
    if columns.headers is None:
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
    arrays.append(header_array(columns))
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA_WITH_HEADERS)


def _constant(value: object, kind: Any, count: int) -> pa.Array:
    """`value`, so many times: the beginning of a longer array, which is kept."""
    room = max(CONSTANT_ROOM_MIN, 1 << (count - 1).bit_length())
    return _repeated(value, kind, room).slice(0, count)


@lru_cache(maxsize=CONSTANTS_KEPT)
def _repeated(value: object, kind: Any, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def binary_array(buffers: BinaryBuffers, count: int, kind: Any = None) -> pa.Array:
    """An array on the buffers as they stand."""
    validity = None if buffers.validity is None else pa.py_buffer(buffers.validity)
    return pa.Array.from_buffers(
        kind or pa.binary(),
        count,
        [validity, pa.py_buffer(buffers.offsets), pa.py_buffer(buffers.data)],
        buffers.null_count,
    )


def header_array(columns: Columns) -> pa.Array:
    headers = columns.headers
    assert headers is not None
    total = len(headers.names.offsets) // 4 - 1
    names = binary_array(headers.names, total, pa.string())
    values = binary_array(headers.values, total)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.Array.from_buffers(
        pa.list_(_HEADER),
        columns.row_count,
        [None, pa.py_buffer(headers.offsets)],
        0,
        children=[pairs],
    )


def _numbers(kind: Any, memory: Any, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(memory)], 0)
