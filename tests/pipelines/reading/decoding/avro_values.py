"""Avro for tests of decoders and encoders: values by fastavro, and kinds of them to choose from."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from tests.pipelines.reading.decoding.values import TIMESTAMP, TIMESTAMP_NTZ

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
MICROS_OF_FOUR_DIGIT_YEARS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
_numbers = count()  # names of types are used once in a schema


def avro(schema: Any, value: Any) -> bytes:
    """The value by fastavro."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def record(name: str = "r", **fields: Any) -> dict[str, Any]:
    """A record's schema; a field with aliases or a default is a dictionary with `type`."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": it} | (kind if _is_field(kind) else {"type": kind})
            for it, kind in fields.items()
        ],
    }


def _is_field(kind: Any) -> bool:
    return (
        isinstance(kind, dict) and "name" not in kind and ("default" in kind or "aliases" in kind)
    )


def framed(schema_id: int, value: bytes) -> bytes:
    """In Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + value


def text_of(schema: Any) -> str:
    return json.dumps(schema)


@dataclass
class Kind:
    """A type of Avro's, the column for it, and values of both."""

    avro: Any
    arrow: Any
    values: st.SearchStrategy[Any]  # as fastavro takes and gives them without logical types
    as_row: Callable[[Any], Any] = field(default=lambda it: it)  # as they stand in the column


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def _decimal(value: bytes, scale: int = 4) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    return Decimal(f"{number}E-{scale}")


SIMPLE_KINDS = [
    Kind("boolean", pa.bool_(), st.booleans()),
    Kind("int", pa.int32(), INT),
    Kind("int", pa.int64(), INT),
    Kind("long", pa.int64(), LONG),
    Kind("int", pa.int8(), st.integers(-128, 127)),
    Kind("long", pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    Kind("int", pa.float64(), INT, float),
    Kind("float", pa.float32(), st.floats(width=32, allow_nan=False)),
    Kind("float", pa.float64(), st.floats(width=32, allow_nan=False)),
    Kind("double", pa.float64(), st.floats(allow_nan=False)),
    Kind("string", pa.string(), st.text()),
    Kind("string", pa.binary(), st.text(), lambda it: it.encode("utf-8", "surrogateescape")),
    Kind("bytes", pa.binary(), st.binary()),
    Kind("bytes", pa.string(), st.text().map(str.encode), bytes.decode),
    Kind(
        logical("bytes", "decimal", precision=38, scale=4),
        pa.decimal128(38, 4),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda it: it.to_bytes(16, "big", signed=True)),
        _decimal,
    ),
    Kind(logical("int", "date"), pa.date32(), INT),
    Kind(logical("long", "timestamp-micros"), TIMESTAMP, LONG),
    Kind(
        logical("long", "timestamp-millis"),
        TIMESTAMP,
        st.integers(-(2**63) // 1000 + 1, 2**63 // 1000 - 1),
        lambda it: it * 1000,
    ),
    Kind(logical("long", "timestamp-nanos"), TIMESTAMP, LONG, lambda it: it // 1000),
    Kind(logical("long", "local-timestamp-micros"), TIMESTAMP_NTZ, LONG),
    Kind(
        logical("int", "time-millis"),
        pa.time64("ns"),
        st.integers(0, 86_399_999),
        lambda it: it * 1_000_000,
    ),
]


def _fixed(size: int) -> st.SearchStrategy[Kind]:
    return st.builds(
        lambda: Kind(
            {"type": "fixed", "name": f"f{next(_numbers)}", "size": size},
            pa.binary(),
            st.binary(min_size=size, max_size=size),
        )
    )


def _enum() -> st.SearchStrategy[Kind]:
    symbols = ["RED", "GREEN", "BLUE"]
    return st.builds(
        lambda: Kind(
            {"type": "enum", "name": f"e{next(_numbers)}", "symbols": symbols},
            pa.string(),
            st.sampled_from(symbols),
        )
    )


def _array(item: Kind) -> Kind:
    return Kind(
        {"type": "array", "items": item.avro},
        pa.list_(item.arrow),
        st.lists(item.values, max_size=3),
        lambda it: [item.as_row(one) for one in it],
    )


def _map(item: Kind) -> Kind:
    return Kind(
        {"type": "map", "values": item.avro},
        pa.map_(pa.string(), item.arrow),
        st.dictionaries(st.text(max_size=3), item.values, max_size=3),
        lambda it: [(key, item.as_row(one)) for key, one in it.items()],
    )


def _nullable(kind: Kind) -> Kind:
    return Kind(
        ["null", kind.avro],
        kind.arrow,
        st.none() | kind.values,
        lambda it: None if it is None else kind.as_row(it),
    )


def _record(parts: list[Kind]) -> Kind:
    names = [f"{letter}" for letter in string.ascii_lowercase[: len(parts)]]
    by_name = dict(zip(names, parts, strict=True))
    return Kind(
        record(f"r{next(_numbers)}", **{name: it.avro for name, it in by_name.items()}),
        pa.struct([(name, it.arrow) for name, it in by_name.items()]),
        st.fixed_dictionaries({name: it.values for name, it in by_name.items()}),
        lambda it: {name: kind.as_row(it[name]) for name, kind in by_name.items()},
    )


def _larger(parts: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    plain = parts.filter(lambda it: not isinstance(it.avro, list))
    return (
        parts.map(_array)
        | parts.map(_map)
        | plain.map(_nullable)
        | st.lists(parts, min_size=1, max_size=4).map(_record)
    )


KINDS = st.recursive(st.sampled_from(SIMPLE_KINDS) | _fixed(3) | _enum(), _larger, max_leaves=4)
ROWS = st.lists(KINDS, min_size=1, max_size=3).map(_record)


def plain(schema: Any) -> Any:
    """The schema without logical types: what fastavro then reads is what is written."""
    if isinstance(schema, list):
        return [plain(it) for it in schema]
    if isinstance(schema, dict):
        return {key: plain(it) for key, it in schema.items() if key != "logicalType"}
    return schema


def as_numbers(array: pa.Array) -> pa.Array:
    """Moments as numbers, since Python's own do not reach as far."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.cast(pa.int64())
    if pa.types.is_date32(kind):
        return array.cast(pa.int32())
    if pa.types.is_struct(kind):
        parts = [as_numbers(array.field(index)) for index in range(kind.num_fields)]
        names = [it.name for it in kind]
        return pa.StructArray.from_arrays(parts, names=names, mask=array.is_null())
    if pa.types.is_map(kind):
        pairs = pa.StructArray.from_arrays(
            [array.keys, as_numbers(array.items)], names=["key", "value"]
        )
        return _relisted(array, pairs)
    if pa.types.is_list(kind):
        return _relisted(array, as_numbers(array.values))
    return array


def _relisted(array: pa.Array, items: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        pa.list_(items.type), len(array), array.buffers()[:2], array.null_count, children=[items]
    )


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """As `Kind.as_row` has them."""
    struct = as_numbers(pa.StructArray.from_arrays(batch.columns, names=batch.schema.names))
    return [_with_pairs(it, batch.schema) for it in struct.to_pylist()]


def _with_pairs(row: Any, schema: pa.Schema) -> Any:
    return {name: _pairs(row[name], schema.field(name).type) for name in schema.names}


def _pairs(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(it["key"], _pairs(it["value"], kind.item_type)) for it in value]
    if pa.types.is_list(kind):
        return [_pairs(it, kind.value_type) for it in value]
    if pa.types.is_struct(kind):
        return {it.name: _pairs(value[it.name], it.type) for it in kind}
    return value
