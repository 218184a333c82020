"""Rows as Avro values, by compiled code (`_avro.pyx`): plain, or with the id of their schema.

The schema is the one that the options give, else the newest of the subject in the registry (if
nothing may be registered), else one derived from the columns (`pipelines/avro/types.py`). Columns
are found by name; a field without a column takes its default. With a registry values are in
Confluent's wire format: a zero, the schema's id in four bytes, the value.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.avro_schema import NO_DEFAULT, AvroType, parse_schema
from millstream.client.schema_registry import registry_for
from millstream.errors import ConfigError
from millstream.pipelines.avro.default import encode_default
from millstream.pipelines.avro.types import derive_schema
from millstream.pipelines.writing.encoding._avro import Part, Unencodable, encode_rows
from millstream.pipelines.writing.encoding.text import valid_utf8

if TYPE_CHECKING:
    from millstream.pipelines.avro.options import AvroOptions

_LONG_MAX = 2**63 - 1
_UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "millis": 10**6, "micros": 10**3}
_NO_UNION = (-1, -1)

# Makes the part for an array, with the branches of the union it is in.
Planned = Callable[[Any, tuple[int, int]], Part]


class _Misfit(Exception):
    """A column cannot be written as a type."""


class AvroEncoder:
    """An `Encoder`; see the module."""

    def __init__(self, options: AvroOptions, schema: pa.Schema, topic: str | None) -> None:
        text, references, self._prefix = _choose_schema(options, schema, topic)
        record = parse_schema(text, references)
        if record.kind != "record":
            raise ConfigError(f"rows are written as records; the Avro schema is {record}")
        kind = pa.struct(list(schema))
        try:
            self._plan = _plan_record(record, kind, "")
        except _Misfit as error:
            raise ConfigError(str(error)) from None

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        rows = batch.to_struct_array()
        try:
            part = self._plan(rows, _NO_UNION)
            offsets, data = encode_rows(part, len(rows), self._prefix)
        except (Unencodable, pa.ArrowInvalid) as error:
            raise ConfigError(f"a batch cannot be written as Avro: {error}") from None
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(rows), buffers, 0)


def _choose_schema(
    options: AvroOptions, schema: pa.Schema, topic: str | None
) -> tuple[str, tuple[str, ...], bytes]:
    """The schema, what it refers to, and what stands before each value."""
    if options.registry is None:
        return options.schema or derive_schema(schema), (), b""
    registry = registry_for(options.registry)
    subject = options.subject or (topic and f"{topic}-value")
    if subject is None:
        raise ConfigError(
            "rows go to many topics, and their schema is registered for one subject: set "
            "avroSubject, or the option topic"
        )
    if options.schema is None and not options.registers:
        schema_id, found = registry.latest(subject)
        return found.text, found.references, _prefix(schema_id)
    text = options.schema or derive_schema(schema)
    ask = registry.register if options.registers else registry.lookup
    return text, (), _prefix(ask(subject, text))


def _prefix(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


# What is written how, decided once


def _plan(kind: AvroType, arrow: Any, path: str) -> tuple[Planned, tuple[int, int]]:
    """How a column is written, and the branches of its union."""
    if kind.kind != "union":
        return _plan_value(kind, arrow, path), _NO_UNION
    null = next((at for at, it in enumerate(kind.items) if it.kind == "null"), -1)
    for branch, it in enumerate(kind.items):
        if it.kind != "null":
            try:
                return _plan_value(it, arrow, path), (null, branch)
            except _Misfit:
                continue
    raise _misfit(kind, arrow, path)


def _plan_value(kind: AvroType, arrow: Any, path: str) -> Planned:
    match kind.kind:
        case "record" if pa.types.is_struct(arrow):
            return _plan_record(kind, arrow, path)
        case "array" if pa.types.is_list(arrow):
            return _plan_array(kind, arrow, path)
        case "map" if pa.types.is_map(arrow) and _is_text(arrow.key_type):
            return _plan_map(kind, arrow, path)
        case "boolean" if pa.types.is_boolean(arrow):
            return lambda array, branches: _part("boolean", path, branches, array)
        case "int" | "long":
            return _plan_integer(kind, arrow, path)
        case "float" | "double":
            return _plan_floating(kind, arrow, path)
        case "enum" if _is_text(arrow):
            return _plan_enum(kind, path)
        case "string" | "bytes" | "fixed":
            return _plan_bytes(kind, arrow, path)
    raise _misfit(kind, arrow, path)


def _misfit(kind: AvroType, arrow: Any, path: str) -> _Misfit:
    return _Misfit(f"column {path} is {arrow}, and the Avro schema says {kind}; cast it")


def _plan_record(kind: AvroType, arrow: Any, path: str) -> Planned:
    names = [it.name for it in arrow]
    missing = set(names) - {it.name for it in kind.fields}
    if missing:
        raise _Misfit(
            f"column {f'{path}.'.lstrip('.')}{min(missing)} is not in the Avro schema {kind.name}; "
            "drop it, or add it there"
        )
    plans: list[Callable[[Any], Part]] = []
    for field in kind.fields:
        inner = f"{path}.{field.name}".lstrip(".")
        if field.name in names:
            at = names.index(field.name)
            plans.append(_column_plan(at, *_plan(field.type, arrow.field(at).type, inner)))
        elif field.default is not NO_DEFAULT:
            constant = encode_default(field.type, field.default)
            plans.append(_constant_plan(inner, constant))
        else:
            raise _Misfit(
                f"the Avro schema has a field {inner} without a default, for which there is no "
                "column"
            )

    def make(array: Any, branches: tuple[int, int]) -> Part:
        children = [it(array) for it in plans]
        return _part("record", path or "row", branches, array, children=children)

    return make


def _column_plan(at: int, plan: Planned, branches: tuple[int, int]) -> Callable[[Any], Part]:
    return lambda array: plan(array.field(at), branches)


def _constant_plan(path: str, constant: bytes) -> Callable[[Any], Part]:
    return lambda _: Part("constant", path, data=constant)


def _plan_array(kind: AvroType, arrow: Any, path: str) -> Planned:
    plan, inner = _plan(kind.items[0], arrow.value_type, f"{path}[]")

    def make(array: Any, branches: tuple[int, int]) -> Part:
        return _part("array", path, branches, array, children=[plan(array.values, inner)])

    return make


def _plan_map(kind: AvroType, arrow: Any, path: str) -> Planned:
    keys = _plan_value(AvroType("string"), arrow.key_type, path)
    plan, inner = _plan(kind.items[0], arrow.item_type, f"{path}[]")

    def make(array: Any, branches: tuple[int, int]) -> Part:
        children = [keys(array.keys, _NO_UNION), plan(array.items, inner)]
        return _part("map", path, branches, array, children=children)

    return make


def _plan_integer(kind: AvroType, arrow: Any, path: str) -> Planned:
    """Numbers as they are; dates, times and timestamps in the unit of the logical type."""
    high = 2**31 - 1 if kind.kind == "int" else _LONG_MAX
    low = -high - 1
    factor = 1
    logical, _, unit = kind.logical.rpartition("-")
    if pa.types.is_timestamp(arrow) or pa.types.is_time64(arrow):
        if logical not in _logical_types_for(arrow):
            raise _misfit(kind, arrow, path)
        given, target = _UNITS_NS[arrow.unit], _UNITS_NS.get(unit, 1)
        factor = given // target if given >= target else -(target // given)
        low, high = (low, high) if factor < 0 else (-(high // factor), high // factor)
        if kind.kind == "int":
            low, high = 0, _LONG_MAX  # milliseconds of a day always fit
    elif pa.types.is_date32(arrow):
        if kind.logical != "date":
            raise _misfit(kind, arrow, path)
    elif not pa.types.is_signed_integer(arrow) or kind.logical:
        raise _misfit(kind, arrow, path)
    width = arrow.bit_width // 8

    def make(array: Any, branches: tuple[int, int]) -> Part:
        return _part(
            "integer", path, branches, array, width=width, low=low, high=high, factor=factor
        )

    return make


def _logical_types_for(arrow: Any) -> tuple[str, ...]:
    """What moments of the column may be, but for their unit."""
    if pa.types.is_time64(arrow):
        return ("time",)
    return ("local-timestamp", "timestamp") if arrow.tz is None else ("timestamp",)


def _plan_floating(kind: AvroType, arrow: Any, path: str) -> Planned:
    wanted = pa.float32() if kind.kind == "float" else pa.float64()
    if not (
        arrow in (pa.float32(), wanted)
        or (pa.types.is_signed_integer(arrow) and kind.kind == "double" and arrow.bit_width <= 32)
    ):
        raise _misfit(kind, arrow, path)

    def make(array: Any, branches: tuple[int, int]) -> Part:
        return _part("raw", path, branches, array.cast(wanted), width=wanted.bit_width // 8)

    return make


def _plan_enum(kind: AvroType, path: str) -> Planned:
    symbols = pa.array(kind.symbols, pa.string())

    def make(array: Any, branches: tuple[int, int]) -> Part:
        numbers = pc.index_in(array.cast(pa.string()), symbols)
        if numbers.null_count > array.null_count:
            unknown = array.filter(pc.and_(array.is_valid(), numbers.is_null()))[0].as_py()
            raise Unencodable(f"column {path} is {unknown!r}, no symbol of {kind}")
        high = len(kind.symbols) - 1
        return _part("integer", path, branches, numbers, width=4, high=high)

    return make


def _plan_bytes(kind: AvroType, arrow: Any, path: str) -> Planned:
    size = kind.size if kind.kind == "fixed" else -1
    if kind.logical == "decimal" and pa.types.is_decimal128(arrow):
        wanted = pa.decimal128(min(kind.precision, 38), kind.scale)

        def make_decimal(array: Any, branches: tuple[int, int]) -> Part:
            return _part("decimal", path, branches, array.cast(wanted), width=16, size=size)

        return make_decimal
    is_bytes = pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow)
    if kind.logical == "uuid" and kind.kind == "fixed" and _is_text(arrow):
        prepare = _uuid_bytes
    elif kind.kind == "string" and _is_text(arrow):
        prepare = _valid_texts
    elif kind.kind != "string" and is_bytes:
        prepare = _with_short_offsets
    else:
        raise _misfit(kind, arrow, path)

    def make(array: Any, branches: tuple[int, int]) -> Part:
        return _part("bytes", path, branches, prepare(array), size=size)

    return make


def _uuid_bytes(array: Any) -> Any:
    texts = array.to_pylist()
    try:
        return pa.array([None if it is None else uuid.UUID(it).bytes for it in texts], pa.binary())
    except ValueError as error:
        raise Unencodable(f"a UUID is none: {error}") from None


def _valid_texts(array: Any) -> Any:
    """Avro's strings are UTF-8; readers refuse others."""
    return _with_short_offsets(valid_utf8(array))


def _with_short_offsets(array: Any) -> Any:
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.binary())
    return array


def _is_text(arrow: Any) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))


def _part(operation: str, path: str, branches: tuple[int, int], array: Any, **details: Any) -> Part:
    """The part for the array's own buffers; those of nested arrays are the children's."""
    buffers = array.buffers()
    is_record = operation == "record"
    return Part(
        operation,
        path,
        branches,
        len(array),
        # The children of a struct are cut to its range already, its validity is not.
        array.offset,
        buffers[0] if array.null_count else None,
        None if is_record else buffers[1],
        buffers[2] if operation == "bytes" else None,
        **details,
    )
