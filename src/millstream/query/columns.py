"""The columns of a topic as a table, and records as batches of them.

    _partition INTEGER, _offset BIGINT, _timestamp TIMESTAMP WITH TIME ZONE
    _key, _value VARCHAR            as text; bytes that are not UTF-8 become \\xNN
    _headers STRUCT(key, value)[]   as text, too

These exist only if the query names them, so that `select *` stays readable:

    _key_bytes, _value_bytes BLOB   exactly as in the record
    _topic VARCHAR
    _error VARCHAR                  why a record has no row of the value's columns, else NULL

The columns of the value (typed.py) come first.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import pyarrow as pa
import pyarrow.compute as pc

from millstream.records.arrow import (
    binary_array,
    constant_array,
    header_lists,
    header_parts,
    number_array,
)
from millstream.records.columns import Columns

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])
USUAL = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIMESTAMP),
        ("_key", pa.string()),
        ("_value", pa.string()),
        ("_headers", pa.list_(HEADER)),
    ]
)
ON_DEMAND = pa.schema(
    [
        ("_key_bytes", pa.binary()),
        ("_value_bytes", pa.binary()),
        ("_topic", pa.string()),
        ("_error", pa.string()),
    ]
)
ERROR = "_error"
RECORD_COLUMNS = frozenset([*USUAL.names, *ON_DEMAND.names])
HEADERS = "_headers"
_TIMESTAMP_MAX_MS = (2**63 - 2) // 1000  # what microseconds can hold; later ones become this


def table_schema(value_schema: pa.Schema, named: Container[str] = ()) -> pa.Schema:
    """The columns of a table: the usual ones, and those on demand that are `named`."""
    extra = [field for field in ON_DEMAND if field.name in named]
    return pa.schema([*value_schema, *USUAL, *extra])


def record_array(name: str, topic: str, partition: int, columns: Columns) -> pa.Array:
    """A column that every topic has."""
    return _ARRAYS[name](topic, partition, columns)


def text_array(values: pa.Array) -> pa.Array:
    """Bytes as text. Costs no copy unless some are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if it is None else show_bytes(it) for it in values.to_pylist()])


def show_bytes(data: bytes) -> str:
    """Text with \\xNN for bytes that are not UTF-8."""
    return data.decode("utf-8", errors="backslashreplace")


def _timestamps(topic: str, partition: int, columns: Columns) -> pa.Array:
    raw = number_array(pa.int64(), columns.timestamps, columns.row_count)
    limits = pc.min_max(raw).as_py()
    if columns.row_count and max(-limits["min"], limits["max"]) > _TIMESTAMP_MAX_MS:
        raw = pc.max_element_wise(pc.min_element_wise(raw, _TIMESTAMP_MAX_MS), -_TIMESTAMP_MAX_MS)
    return raw.cast(pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def _headers(topic: str, partition: int, columns: Columns) -> pa.Array:
    names, values = header_parts(columns)
    pairs = pa.StructArray.from_arrays([text_array(names), text_array(values)], fields=list(HEADER))
    return header_lists(columns, HEADER, pairs)


_ARRAYS: dict[str, Callable[[str, int, Columns], pa.Array]] = {
    "_partition": lambda _, partition, it: constant_array(partition, pa.int32(), it.row_count),
    "_offset": lambda _, __, it: number_array(pa.int64(), it.offsets, it.row_count),
    "_timestamp": _timestamps,
    "_key": lambda _, __, it: text_array(binary_array(it.keys, it.row_count)),
    "_value": lambda _, __, it: text_array(binary_array(it.values, it.row_count)),
    "_headers": _headers,
    "_key_bytes": lambda _, __, it: binary_array(it.keys, it.row_count),
    "_value_bytes": lambda _, __, it: binary_array(it.values, it.row_count),
    "_topic": lambda topic, _, it: constant_array(topic, pa.string(), it.row_count),
}
