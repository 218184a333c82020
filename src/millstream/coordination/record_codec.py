"""Kafka's wire types for the records of internal topics, and the schemas built from them.

The internal topics (`__consumer_offsets`, `__transaction_state`, `__share_group_state`) hold
records whose keys and values are Kafka messages. kio has none of these schemas, and this room
imports no codec of the wire, so the few types they use are written here:

    int8 int16 int32 int64      big-endian; also uint16, float64, and bool in one byte
    uuid                        16 bytes
    string                      int16 length + UTF-8;  flexible: unsigned varint of length + 1
    bytes                       int32 length + bytes;  flexible: unsigned varint of length + 1
    array of T                  int32 count  + items;  flexible: unsigned varint of count + 1
    struct                      its fields in order;   flexible: then its tagged fields
    null                        length -1;             flexible: length 0
    tagged fields               varint count, then each: varint tag, varint size, the bytes

A `Schema` ties such fields to a frozen dataclass. Fields may exist only in some versions. A tagged
field is written only when it differs from its default. A tag that we do not know is skipped, so
that a later Kafka's records can be read.

Truncated or invalid bytes raise `CorruptRecord`; a length alone never allocates memory.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.errors import StorageError

Write = Callable[[bytearray, Any], None]
Read = Callable[["Reader"], Any]
T = TypeVar("T")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class CorruptRecord(StorageError):
    """The bytes of an internal record do not match their schema."""


class UnknownVersion(CorruptRecord):
    """A newer version of Millstream wrote the record."""


class Reader:
    """A position in a record's bytes. Reading past the end raises `CorruptRecord`."""

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: bytes, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.buffer):
            left = len(self.buffer) - self.position
            raise CorruptRecord(f"field of {size} bytes exceeds the remaining {left}")
        taken = self.buffer[self.position : end]
        self.position = end
        return taken

    def varint(self) -> int:
        """An unsigned varint of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptRecord("varint longer than five bytes")


def write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


class FieldType:
    """How values of one type are written and read, plain or flexible."""

    def writer(self, version: int, flexible: bool) -> Write:
        raise NotImplementedError

    def reader(self, version: int, flexible: bool) -> Read:
        raise NotImplementedError


@dataclass(frozen=True)
class _Number(FieldType):
    layout: struct.Struct

    def writer(self, version: int, flexible: bool) -> Write:
        pack = self.layout.pack
        return lambda out, value: out.extend(pack(value))

    def reader(self, version: int, flexible: bool) -> Read:
        unpack, size = self.layout.unpack, self.layout.size
        return lambda reader: unpack(reader.take(size))[0]


@dataclass(frozen=True)
class NumberOf(FieldType):
    """A member of an enumeration, as its number."""

    number: FieldType
    enumeration: type[IntEnum]

    def writer(self, version: int, flexible: bool) -> Write:
        return self.number.writer(version, flexible)

    def reader(self, version: int, flexible: bool) -> Read:
        read_number, enumeration = self.number.reader(version, flexible), self.enumeration

        def read(reader: Reader) -> IntEnum:
            number = read_number(reader)
            try:
                return enumeration(number)
            except ValueError as error:
                raise CorruptRecord(f"invalid {enumeration.__name__}: {number}") from error

        return read


class _Uuid(FieldType):
    def writer(self, version: int, flexible: bool) -> Write:
        return lambda out, value: out.extend(value.bytes)

    def reader(self, version: int, flexible: bool) -> Read:
        return lambda reader: uuid.UUID(bytes=reader.take(16))


@dataclass(frozen=True)
class _Sized(FieldType):
    """Strings and byte strings: a length, then the bytes."""

    length: struct.Struct
    is_text: bool
    nullable: bool = False

    def writer(self, version: int, flexible: bool) -> Write:
        def write(out: bytearray, value: str | bytes | None) -> None:
            raw = value.encode() if isinstance(value, str) else value
            if raw is None and not self.nullable:
                raise ValueError("null in a non-nullable field")
            if flexible:
                write_varint(out, 0 if raw is None else len(raw) + 1)
            else:
                out += self.length.pack(-1 if raw is None else len(raw))
            out += raw or b""

        return write

    def reader(self, version: int, flexible: bool) -> Read:
        def read(reader: Reader) -> str | bytes | None:
            if flexible:
                size = reader.varint() - 1
            else:
                size = self.length.unpack(reader.take(self.length.size))[0]
            if size < 0 and self.nullable:
                return None
            raw = reader.take(size)
            try:
                return raw.decode() if self.is_text else raw
            except UnicodeDecodeError as error:
                raise CorruptRecord(f"string is not UTF-8: {raw[:40]!r}") from error

        return read


@dataclass(frozen=True)
class ArrayOf(FieldType):
    """A tuple of values of one type."""

    element: FieldType
    nullable: bool = False

    def writer(self, version: int, flexible: bool) -> Write:
        write_element = self.element.writer(version, flexible)

        def write(out: bytearray, values: tuple[Any, ...] | None) -> None:
            if values is None and not self.nullable:
                raise ValueError("null in a non-nullable array")
            count = -1 if values is None else len(values)
            if flexible:
                write_varint(out, count + 1)
            else:
                out += _INT32.pack(count)
            for value in values or ():
                write_element(out, value)

        return write

    def reader(self, version: int, flexible: bool) -> Read:
        read_element = self.element.reader(version, flexible)

        def read(reader: Reader) -> tuple[Any, ...] | None:
            count = reader.varint() - 1 if flexible else _INT32.unpack(reader.take(4))[0]
            if count < 0:
                if not self.nullable:
                    raise CorruptRecord("null in a non-nullable array")
                return None
            # Every element takes at least one byte, so a wrong count ends at the end of the bytes.
            return tuple(read_element(reader) for _ in range(count))

        return read


BOOL = _Number(struct.Struct(">?"))
INT8 = _Number(struct.Struct(">b"))
INT16 = _Number(_INT16)
UINT16 = _Number(struct.Struct(">H"))
INT32 = _Number(_INT32)
INT64 = _Number(_INT64)
FLOAT64 = _Number(struct.Struct(">d"))
UUID = _Uuid()
STRING = _Sized(_INT16, is_text=True)
NULLABLE_STRING = _Sized(_INT16, is_text=True, nullable=True)
BYTES = _Sized(_INT32, is_text=False)


class Field(NamedTuple):
    """One field of a schema: its name in the dataclass, its type, the versions that have it."""

    name: str
    type: FieldType
    since: int = 0
    until: int = 32767
    tag: int | None = None
    default: Any = (
        None  # what a version without the field reads; a tagged field equal to it is left out
    )

    def exists_in(self, version: int) -> bool:
        return self.since <= version <= self.until


@dataclass(frozen=True, eq=False)
class Schema(FieldType, Generic[T]):
    """A message of Kafka's, tied to the frozen dataclass that holds it here."""

    cls: type[T]
    fields: tuple[Field, ...]
    flexible_since: int = 32767

    def encode(self, value: T, version: int) -> bytes:
        """The message alone, without the int16 that leads it in a record."""
        out = bytearray()
        _struct_writer(self, version)(out, value)
        return bytes(out)

    def decode(self, buffer: bytes, version: int, position: int = 0) -> T:
        reader = Reader(buffer, position)
        value: T = _struct_reader(self, version)(reader)
        return value

    def writer(self, version: int, flexible: bool) -> Write:
        return _struct_writer(self, version)

    def reader(self, version: int, flexible: bool) -> Read:
        return _struct_reader(self, version)


@dataclass(frozen=True)
class NullableStruct(FieldType):
    """A struct in a tagged field that may be null: a varint 1 stands before it."""

    schema: Schema[Any]

    def writer(self, version: int, flexible: bool) -> Write:
        write_struct = _struct_writer(self.schema, version)

        def write(out: bytearray, value: Any) -> None:
            out.append(1)
            write_struct(out, value)

        return write

    def reader(self, version: int, flexible: bool) -> Read:
        read_struct = _struct_reader(self.schema, version)
        return lambda reader: read_struct(reader) if reader.varint() else None


@lru_cache(maxsize=256)
def _struct_writer(schema: Schema[Any], version: int) -> Write:
    flexible = version >= schema.flexible_since
    present = [field for field in schema.fields if field.exists_in(version)]
    plain = [
        (field.name, field.type.writer(version, flexible)) for field in present if field.tag is None
    ]
    tagged = [
        (field, field.type.writer(version, flexible)) for field in present if field.tag is not None
    ]

    def write_tagged(out: bytearray, value: Any) -> None:
        given = [(f, write) for f, write in tagged if getattr(value, f.name) != f.default]
        write_varint(out, len(given))
        for field, write in given:
            body = bytearray()
            write(body, getattr(value, field.name))
            write_varint(out, field.tag or 0)
            write_varint(out, len(body))
            out += body

    def write_struct(out: bytearray, value: Any) -> None:
        for name, write in plain:
            write(out, getattr(value, name))
        if flexible:
            write_tagged(out, value)

    return write_struct


@lru_cache(maxsize=256)
def _struct_reader(schema: Schema[Any], version: int) -> Read:
    flexible = version >= schema.flexible_since
    present = [field for field in schema.fields if field.exists_in(version)]
    plain = [
        (field.name, field.type.reader(version, flexible)) for field in present if field.tag is None
    ]
    tagged = {
        field.tag: (field.name, field.type.reader(version, flexible))
        for field in present
        if field.tag is not None
    }
    read_names = {name for name, _ in plain}
    defaults = {f.name: f.default for f in schema.fields if f.name not in read_names}

    def read_tagged(reader: Reader, values: dict[str, Any]) -> None:
        for _ in range(reader.varint()):
            tag = reader.varint()
            body = reader.take(reader.varint())
            if tag in tagged:
                name, read = tagged[tag]
                values[name] = read(Reader(body))

    def read_struct(reader: Reader) -> Any:
        values = dict(defaults)
        for name, read in plain:
            values[name] = read(reader)
        if flexible:
            read_tagged(reader, values)
        return schema.cls(**values)

    return read_struct


class RecordType(NamedTuple):
    """One type of record in an internal topic: its number, and the schemas of its key and value."""

    number: int  # the int16 that leads the key
    key: Schema[Any]
    value: Schema[Any]
    newest_version: int = 0  # of the value; one newer than this is not understood
    is_update: bool = False  # changes the last record of the same key under another type


class RecordCodec:
    """Turns records of one internal topic into the bytes Kafka writes, and back."""

    def __init__(self, types: tuple[RecordType, ...], value_version: Callable[[Any], int]) -> None:
        self._by_number = {record_type.number: record_type for record_type in types}
        self._by_key_class = {record_type.key.cls: record_type for record_type in types}
        self._value_version = value_version
        self._updates = frozenset(
            _INT16.pack(record_type.number) for record_type in types if record_type.is_update
        )

    @property
    def has_updates(self) -> bool:
        """Whether a key has update records, so that its last record alone is not enough."""
        return bool(self._updates)

    def is_update(self, key: bytes) -> bool:
        return key[:2] in self._updates

    def subject(self, key: bytes) -> bytes:
        """The subject of a key, independent of its type: the same for updates and snapshots."""
        return key[2:]

    def encode(self, key: Any, value: Any | None) -> tuple[bytes, bytes | None]:
        """Key and value bytes; a tombstone's value is None."""
        record_type = self._by_key_class[type(key)]
        key_bytes = _INT16.pack(record_type.number) + record_type.key.encode(key, 0)
        if value is None:
            return key_bytes, None
        version = self._value_version(value)
        return key_bytes, _INT16.pack(version) + record_type.value.encode(value, version)

    def decode(self, key: bytes, value: bytes | None) -> tuple[Any, Any | None] | None:
        """The record, or None if its type is unknown: the caller skips it."""
        record_type = self._by_number.get(_leading_int16(key))
        if record_type is None:
            return None
        decoded_key = record_type.key.decode(key, 0, position=2)
        if value is None:
            return decoded_key, None
        version = _leading_int16(value)
        if not 0 <= version <= record_type.newest_version:
            raise UnknownVersion(
                f"unsupported version: {record_type.value.cls.__name__} v{version}; 0 to "
                f"{record_type.newest_version} are supported"
            )
        return decoded_key, record_type.value.decode(value, version, position=2)


def _leading_int16(buffer: bytes) -> int:
    if len(buffer) < 2:
        raise CorruptRecord(f"{len(buffer)} bytes are too few for a type or version")
    leading: int = _INT16.unpack_from(buffer)[0]
    return leading
