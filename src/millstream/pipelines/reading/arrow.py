"""Columns of records as Arrow batches in the shape that Spark's Kafka connector gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.records.arrow import (
    HEADER_TYPE,
    binary_array,
    constant_array,
    header_array,
    number_array,
)
from millstream.records.columns import Columns

RAW_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
HEADERS_SCHEMA = ", headers array<struct<key: string, value: binary>>"
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
_ARROW_SCHEMA_WITH_HEADERS = _ARROW_SCHEMA.append(pa.field("headers", pa.list_(HEADER_TYPE)))


def raw_batch(topic: str, partition: int, columns: Columns) -> pa.RecordBatch:
    """The records with the columns of the Kafka connector."""
    count = columns.row_count
    moments = number_array(_TIMESTAMP_MS, columns.timestamps, count)
    arrays: list[Any] = [
        binary_array(columns.keys, count),
        binary_array(columns.values, count),
        constant_array(topic, pa.string(), count),
        constant_array(partition, pa.int32(), count),
        number_array(pa.int64(), columns.offsets, count),
        moments.cast(_TIMESTAMP),
        number_array(pa.uint8(), columns.timestamp_types, count).cast(pa.int32()),
    ]
    if columns.headers is None:
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
    arrays.append(header_array(columns))
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA_WITH_HEADERS)
