"""Defaults of a reader's schema, from the JSON in which it has them to Avro's own encoding."""

from __future__ import annotations

import struct
from typing import Any

from millstream.pipelines.reading.decoding.avro_schema import NO_DEFAULT, AvroType, BadSchema


def encode_default(kind: AvroType, value: Any) -> bytes:
    """`value`, a default as schemas write it, as a value of the type. Raises `BadSchema`."""
    try:
        return _encode(kind, value)
    except (TypeError, KeyError, ValueError, AttributeError, struct.error) as error:
        raise BadSchema(f"the default {value!r} is none of {kind}: {error}") from None


def _encode(kind: AvroType, value: Any) -> bytes:
    match kind.kind:
        case "null":
            if value is not None:
                raise ValueError("it is not null")
            return b""
        case "boolean":
            return bytes([{False: 0, True: 1}[value]])
        case "int" | "long":
            return number(int(value))
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return _counted(value.encode())
        case "bytes":
            return _counted(value.encode("latin-1"))
        case "fixed":
            raw: bytes = value.encode("latin-1")
            if len(raw) != kind.size:
                raise ValueError(f"it has not {kind.size} bytes")
            return raw
        case "enum":
            return number(kind.symbols.index(value))
        case _:
            return _encode_parts(kind, value)


def _encode_parts(kind: AvroType, value: Any) -> bytes:
    match kind.kind:
        case "array":
            items = b"".join(_encode(kind.items[0], it) for it in value)
            return (number(len(value)) + items if value else b"") + number(0)
        case "map":
            pairs = (
                _counted(key.encode()) + _encode(kind.items[0], it) for key, it in value.items()
            )
            return (number(len(value)) + b"".join(pairs) if value else b"") + number(0)
        case "record":
            return b"".join(
                _encode(it.type, _part(value, it.name, it.default)) for it in kind.fields
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
        except (TypeError, KeyError, ValueError, AttributeError, struct.error):
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
