"""JSON, CSV and text: one compiled decoder (`_rows.pyx`) and the schema as it wants it.

What fits which type is written down in docs/decisions/0010-json-decoding.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.decoding import Decoded, Failure
from millstream.pipelines.decoding._rows import RowDecoder

if TYPE_CHECKING:
    from millstream.pipelines.decoding._rows import Field, Taken
    from millstream.pipelines.options import ReadOptions
    from millstream.records.columns import Columns

_SIMPLE_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_NESTED_TYPES = ("struct", "array", "map")
_VARIANT_MARK = b"variant"  # what Spark puts on the fields of a variant


class RowsDecoder:
    """A `Decoder`; see the module."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._schema = schema
        fields = [describe(field, field.name) for field in schema]
        _check_format(options.value_format, fields)
        csv = options.csv
        dialect = f"{csv.separator}{csv.quote}{csv.escape}".encode()
        self._decoder = RowDecoder(options.value_format, fields, dialect)

    def decode(self, columns: Columns) -> Decoded:
        values = columns.values
        count, rows, failures, taken = self._decoder.decode(
            columns.row_count, values.validity, values.offsets, values.data
        )
        arrays = [_array(field.type, it) for field, it in zip(self._schema, taken, strict=True)]
        numbers = None
        if rows is not None:
            numbers = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows)], 0)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return Decoded(batch, numbers, [Failure(*it) for it in failures])


def describe(field: pa.Field, path: str) -> Field:
    """The field for the compiled decoder. Raises `ConfigError` for a type that it does not know."""
    kind, children, precision, scale = _kind_of(field, path)
    return field.name, kind, field.nullable, precision, scale, children


def _kind_of(field: pa.Field, path: str) -> tuple[str, list[Field], int, int]:
    """Its type's name, the fields in it, and what a decimal can hold."""
    kind: Any = field.type
    if kind in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[kind], [], 0, 0
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return "decimal", [], kind.precision, kind.scale
    if pa.types.is_list(kind):
        return "array", [describe(kind.value_field, f"{path}[]")], 0, 0
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        item = describe(kind.item_field, f"{path}[]")
        return "map", [describe(kind.key_field, path), item], 0, 0
    if pa.types.is_struct(kind) and not any(_VARIANT_MARK in (it.metadata or ()) for it in kind):
        return "struct", [describe(it, f"{path}.{it.name}") for it in kind], 0, 0
    raise ConfigError(
        f"column {path}: {kind} cannot be read from JSON, CSV or text; declare it string, and "
        "convert it in the query"
        + (" (the keys of a map must be strings)" if pa.types.is_map(kind) else "")
    )


def _check_format(value_format: str, fields: list[Field]) -> None:
    if value_format == "text" and [kind for _, kind, *_ in fields] != ["string"]:
        raise ConfigError(
            "valueFormat text takes a schema with one column of type string for the value; "
            f"it has {', '.join(f'{name} {kind}' for name, kind, *_ in fields) or 'none'}"
        )
    if value_format == "csv":
        if not fields:
            raise ConfigError("valueFormat csv needs a column for each field of a line")
        for name, kind, *_ in fields:
            if kind in _NESTED_TYPES:
                raise ConfigError(f"column {name}: CSV has no {kind}; declare it string")


def _array(kind: Any, taken: Taken) -> pa.Array:
    """An array on the buffers as they stand."""
    count, null_count, validity, values, data, children = taken
    buffers = [None if validity is None else pa.py_buffer(validity)]
    if values is not None:
        buffers.append(pa.py_buffer(values))
    if data is not None:
        buffers.append(pa.py_buffer(data))
    nested: list[pa.Array] | None = None
    if pa.types.is_struct(kind):
        nested = [_array(field.type, it) for field, it in zip(kind, children, strict=True)]
    elif pa.types.is_list(kind):
        nested = [_array(kind.value_type, children[0])]
    elif pa.types.is_map(kind):
        pair_type = pa.struct([kind.key_field, kind.item_field])
        pairs = [_array(kind.key_type, children[0]), _array(kind.item_type, children[1])]
        nested = [pa.Array.from_buffers(pair_type, len(pairs[0]), [None], 0, children=pairs)]
    return pa.Array.from_buffers(kind, count, buffers, null_count, children=nested)
