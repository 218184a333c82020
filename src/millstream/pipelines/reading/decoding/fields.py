"""A schema as the compiled decoders want it, and what they return as Arrow's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.reading.decoding.results import Decoded, Failure

if TYPE_CHECKING:
    from millstream.pipelines.reading.decoding._rows import Field, Taken
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
_TIME = pa.time64("ns")
_VARIANT_MARK = b"variant"  # what Spark puts on the fields of a variant


def describe(
    field: pa.Field, path: str, formats: str, *, with_times: bool = False, epoch_unit_us: int = 0
) -> Field:
    """The field for a compiled decoder. Raises `ConfigError` for a type that it does not know;
    `formats` is what is read, for the message. `epoch_unit_us`: the microseconds of the unit in
    which numbers count timestamps since 1970; 0 if numbers are no timestamps."""

    def nested(inner: pa.Field, inner_path: str) -> Field:
        return describe(
            inner, inner_path, formats, with_times=with_times, epoch_unit_us=epoch_unit_us
        )

    kind: Any = field.type
    children: list[Field] = []
    precision = scale = 0
    if kind in _SIMPLE_TYPES:
        name = _SIMPLE_TYPES[kind]
        scale = epoch_unit_us if name == "timestamp" else 0
    elif kind == _TIME and with_times:
        name = "time"
    elif pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        name, precision, scale = "decimal", kind.precision, kind.scale
    elif pa.types.is_list(kind):
        name, children = "array", [nested(kind.value_field, f"{path}[]")]
    elif pa.types.is_map(kind) and kind.key_type == pa.string():
        name = "map"
        children = [nested(kind.key_field, path), nested(kind.item_field, f"{path}[]")]
    elif pa.types.is_struct(kind) and not any(_VARIANT_MARK in (it.metadata or ()) for it in kind):
        name, children = "struct", [nested(it, f"{path}.{it.name}") for it in kind]
    else:
        raise ConfigError(
            f"column {path}: {kind} cannot be read from {formats}; declare it string, and "
            "convert it in the query"
            + (" (the keys of a map must be strings)" if pa.types.is_map(kind) else "")
        )
    return field.name, name, field.nullable, precision, scale, children


def decode_values(decoder: Any, schema: pa.Schema, columns: Columns) -> Decoded:
    """The values of the records by a compiled decoder, as `Decoder.decode` returns them."""
    values = columns.values
    count, rows, failures, taken = decoder.decode(
        columns.row_count, values.validity, values.offsets, values.data
    )
    arrays = [_array(field.type, it) for field, it in zip(schema, taken, strict=True)]
    numbers = None
    if rows is not None:
        numbers = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows)], 0)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Decoded(batch, numbers, [Failure(*it) for it in failures])


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
