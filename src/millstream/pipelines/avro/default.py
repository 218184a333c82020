"""Defaults of a reader's schema, from the JSON in which it has them to Avro's own encoding.

Types are exact: `true` is no number, `"5"` and `1.5` are no `int`, or a union would take them for
its first branch. A whole number is a `float` or `double`, too, since JSON need not tell them apart.
"""

from __future__ import annotations

import struct
from typing import Any

from millstream.client.avro_schema import NO_DEFAULT, AvroType, BadSchema

# How a default of another type fails; the last two where a number has no place in a float.
_REFUSED = (TypeError, KeyError, ValueError, OverflowError, struct.error)
_BITS = {"int": 32, "long": 64}


def encode_default(kind: AvroType, value: Any) -> bytes:
    """`value`, a default as schemas write it, as a value of the type. Raises `BadSchema`."""
    try:
        return _encode(kind, value)
    except _REFUSED as error:
        raise BadSchema(f"the default {value!r} is none of {kind}: {error}") from None


def _encode(kind: AvroType, value: Any) -> bytes:
    match kind.kind:
        case "null":
            if value is not None:
                raise ValueError("it is not null")
            return b""
        case "boolean":
            return bytes([_of_type(value, bool)])
        case "int" | "long":
            beyond = 1 << _BITS[kind.kind] - 1
            if not -beyond <= _of_type(value, int) < beyond:
                raise ValueError(f"it has more than {_BITS[kind.kind]} bits")
            return number(value)
        case "float":
            return struct.pack("<f", _of_type(value, float, int))
        case "double":
            return struct.pack("<d", _of_type(value, float, int))
        case "string":
            return _counted(_of_type(value, str).encode())
        case "bytes":
            return _counted(_of_type(value, str).encode("latin-1"))
        case "fixed":
            raw: bytes = _of_type(value, str).encode("latin-1")
            if len(raw) != kind.size:
                raise ValueError(f"it has not {kind.size} bytes")
            return raw
        case "enum":
            return number(kind.symbols.index(value))
        case _:
            return _encode_parts(kind, value)


def _of_type(value: Any, *types: type) -> Any:
    """The value, if it is exactly of one of these types: Python takes a bool for an int."""
    if type(value) not in types:
        raise TypeError(f"it is a {type(value).__name__}")
    return value


def _encode_parts(kind: AvroType, value: Any) -> bytes:
    match kind.kind:
        case "array":
            items = b"".join(_encode(kind.items[0], it) for it in _of_type(value, list))
            return (number(len(value)) + items if value else b"") + number(0)
        case "map":
            pairs = (
                _counted(key.encode()) + _encode(kind.items[0], it)
                for key, it in _of_type(value, dict).items()
            )
            return (number(len(value)) + b"".join(pairs) if value else b"") + number(0)
        case "record":
            parts = _of_type(value, dict)
            return b"".join(
                _encode(it.type, _part(parts, it.name, it.default)) for it in kind.fields
            )
        case _:
            return _encode_branch(kind, value)


def _part(value: Any, name: str, default: Any) -> Any:
    if name not in value and default is NO_DEFAULT:
        raise KeyError(name)
    return value.get(name, default)


def _encode_branch(union: AvroType, value: Any) -> bytes:
    """The first branch that the value is of; it used to be the first of all."""
    for index, branch in enumerate(union.items):
        try:
            return number(index) + _encode(branch, value)
        except _REFUSED:
            continue
    raise ValueError("it is of no branch")


def number(value: int) -> bytes:
    """A zigzag varint."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _counted(raw: bytes) -> bytes:
    return number(len(raw)) + raw
