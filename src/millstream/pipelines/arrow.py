"""Columns of records as Arrow batches in the shape that Spark's Kafka connector gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.records.columns import BinaryBuffers, Columns

RAW_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
HEADERS_SCHEMA = ", headers array<struct<key: string, value: binary>>"
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")


def raw_batch(topic: str, partition: int, columns: Columns) -> pa.RecordBatch:
    """The records with the columns of the Kafka connector."""
    count = columns.row_count
    arrays: dict[str, Any] = {
        "key": binary_array(columns.keys, count),
        "value": binary_array(columns.values, count),
        "topic": pa.repeat(pa.scalar(topic), count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": _numbers(pa.int64(), columns.offsets, count),
        "timestamp": _numbers(pa.timestamp("ms", tz="UTC"), columns.timestamps, count).cast(
            _TIMESTAMP
        ),
        "timestampType": _numbers(pa.uint8(), columns.timestamp_types, count).cast(pa.int32()),
    }
    if columns.headers is not None:
        arrays["headers"] = header_array(columns)
    return pa.RecordBatch.from_pydict(arrays)


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
