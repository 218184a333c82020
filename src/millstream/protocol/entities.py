"""Decodes kio's message classes from untrusted bytes.

kio's own decoder allocates memory for as many elements as an array's length field claims, and if
the allocation fails, the process is aborted: one malformed request would kill the broker. So
requests are decoded here, by plans built from the same classes. Every length is checked against the
remaining bytes before it is used.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any, TypeAlias, get_args, get_type_hints

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.wire import (
    INT16,
    INT64,
    Buffer,
    read_array_length,
    read_nullable_bytes,
    read_nullable_string,
    read_string,
    read_tags,
)

Reader: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]

UUID_BYTES = 16

_ERROR_CODES = {int(code): code for code in ErrorCode}
_EPOCH = datetime.fromtimestamp(0, UTC)


def nested_entity(hint: Any) -> tuple[type[Any] | None, bool]:
    """The entity class that a field of this type holds, if any, and whether it is an array."""
    options = get_args(hint) if type(None) in get_args(hint) else (hint,)
    for option in options:
        args = get_args(option)
        is_array = bool(args) and args[-1] is Ellipsis
        element = args[0] if is_array else option
        if dataclasses.is_dataclass(element) and isinstance(element, type):
            return element, is_array
        if is_array:
            return None, True
    return None, False


def make_reader(cls: type[Any]) -> Reader:
    """A function that reads one entity of the class: (buffer, position) -> (entity, position).

    It raises `ProtocolError`, `struct.error` or `IndexError` for malformed bytes.
    """
    hints = get_type_hints(cls)
    flexible = cls.__flexible__
    fields: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        reader = _field_reader(field, hints[field.name], flexible)
        tag = field.metadata.get("tag")
        if tag is None:
            fields.append((field.name, reader))
        else:
            tagged[tag] = (field.name, reader)
            defaults[field.name] = field.default

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        values = dict(defaults)
        for name, read_field in fields:
            values[name], position = read_field(buffer, position)
        if flexible:
            tags, position = read_tags(buffer, position)
            for tag, raw in tags.items():
                if tag in tagged:
                    name, read_field = tagged[tag]
                    values[name], end = read_field(raw, 0)
                    if end != len(raw):
                        raise ProtocolError(f"tagged field {tag} has {len(raw)} bytes, not {end}")
        return cls(**values), position

    return read


def _field_reader(field: dataclasses.Field[Any], hint: Any, flexible: bool) -> Reader:
    nullable = type(None) in get_args(hint)
    nested, is_array = nested_entity(hint)
    if nested is not None:
        element = make_reader(nested)
    else:
        kind = str(field.metadata["kafka_type"])
        element = _primitive_reader(kind, nullable and not is_array, flexible)
    if is_array:
        return _array_reader(element, nullable, flexible)
    if nested is not None and nullable:
        return _nullable_reader(element)
    return element


def _array_reader(element: Reader, nullable: bool, flexible: bool) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        length, position = read_array_length(buffer, position, compact=flexible)
        if length < 0:
            if not nullable:
                raise ProtocolError("null in a non-nullable array")
            return None, position
        items = []
        for _ in range(length):
            item, position = element(buffer, position)
            items.append(item)
        return tuple(items), position

    return read


def _nullable_reader(element: Reader) -> Reader:
    """A nullable struct: one leading byte, -1 for null."""

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        if buffer[position] >= 0x80:
            return None, position + 1
        return element(buffer, position + 1)

    return read


_NUMBERS = {
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "uint16": Struct(">H"),
    "float64": Struct(">d"),
    "bool": Struct(">?"),
}
_DURATIONS = {"timedelta_i32": Struct(">i"), "timedelta_i64": Struct(">q")}


def _primitive_reader(kind: str, nullable: bool, flexible: bool) -> Reader:
    if kind in _NUMBERS:
        return _number_reader(_NUMBERS[kind])
    if kind in _DURATIONS:
        return _duration_reader(_DURATIONS[kind])
    if kind == "uuid":
        return _read_uuid
    if kind == "string":
        read_text = read_nullable_string if nullable else read_string
        return lambda buffer, position: read_text(buffer, position, compact=flexible)
    if kind == "bytes":
        return _bytes_reader(nullable, flexible)
    if kind == "records":  # possibly megabytes: not copied
        return lambda buffer, at: read_nullable_bytes(buffer, at, compact=flexible, wide=True)
    if kind == "error_code":
        return _read_error_code
    if kind == "datetime_i64":
        return _read_moment
    raise TypeError(f"no reader for {kind}")


def _number_reader(number: Struct) -> Reader:
    unpack, size = number.unpack_from, number.size
    return lambda buffer, position: (unpack(buffer, position)[0], position + size)


def _duration_reader(number: Struct) -> Reader:
    unpack, size = number.unpack_from, number.size

    def read(buffer: Buffer, position: int) -> tuple[timedelta, int]:
        try:
            return timedelta(milliseconds=unpack(buffer, position)[0]), position + size
        except OverflowError:
            raise ProtocolError("duration longer than a million years") from None

    return read


def _read_uuid(buffer: Buffer, position: int) -> tuple[uuid.UUID | None, int]:
    end = position + UUID_BYTES
    if end > len(buffer):
        raise ProtocolError("message truncated inside an id")
    raw = bytes(buffer[position:end])
    return (uuid.UUID(bytes=raw) if any(raw) else None), end


def _read_error_code(buffer: Buffer, position: int) -> tuple[ErrorCode, int]:
    """An unknown code is still an error."""
    code = INT16.unpack_from(buffer, position)[0]
    return _ERROR_CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR), position + 2


def _read_moment(buffer: Buffer, position: int) -> tuple[datetime | None, int]:
    milliseconds = INT64.unpack_from(buffer, position)[0]
    if milliseconds < 0:
        return None, position + 8
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds), position + 8
    except OverflowError:
        raise ProtocolError("timestamp after the year 9999") from None


def _bytes_reader(nullable: bool, flexible: bool) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
        raw, position = read_nullable_bytes(buffer, position, compact=flexible, wide=True)
        if raw is None:
            if not nullable:
                raise ProtocolError("null in non-nullable bytes")
            return None, position
        return bytes(raw), position

    return read


TOO_SHORT = (struct.error, IndexError)
"""Raised by a reader if the bytes are truncated."""
