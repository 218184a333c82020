"""Primitive types of the wire format, for the hand-written codecs.

Readers take a buffer and a position and return the value and the next position; they raise
`ProtocolError` (or `struct.error`, which the codecs' entry points turn into one) for malformed
bytes. Writers return bytes. "Compact" types are those of flexible versions: a length is an unsigned
varint plus one, 0 for null.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Protocol, TypeAlias
from uuid import UUID

from millstream.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview


class SentFile(Protocol):
    """Bytes of a file, in a message that is sent at once."""

    def __len__(self) -> int: ...

    def send(self, socket_fd: int) -> int:
        """Send as much as the socket takes now; returns how much that was."""

    def read(self, start: int = 0) -> bytes | bytearray:
        """The bytes from `start` on."""


Piece: TypeAlias = Buffer | SentFile

INT8 = Struct(">b")
INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")

NO_TAGS = b"\x00"

_VARINT_BYTES_MAX = 5
_SHORT_VARINTS = tuple(bytes((value,)) for value in range(128))


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for index in range(1, _VARINT_BYTES_MAX):
        byte = buffer[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ProtocolError("varint longer than five bytes")


def write_unsigned_varint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT_VARINTS[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_nullable_bytes(
    buffer: Buffer, position: int, *, compact: bool, wide: bool = False
) -> tuple[Buffer | None, int]:
    """A length and that many bytes, as a slice of the buffer. `wide`: a plain int32 length."""
    if compact:
        length, position = read_unsigned_varint(buffer, position)
        length -= 1
    elif wide:
        (length,) = INT32.unpack_from(buffer, position)
        position += 4
    else:
        (length,) = INT16.unpack_from(buffer, position)
        position += 2
    if length < 0:
        return None, position
    end = position + length
    if end > len(buffer):
        raise ProtocolError(
            f"field of {length} bytes exceeds the remaining {len(buffer) - position}"
        )
    return buffer[position:end], end


def read_nullable_string(buffer: Buffer, position: int, *, compact: bool) -> tuple[str | None, int]:
    raw, position = read_nullable_bytes(buffer, position, compact=compact)
    if raw is None:
        return None, position
    try:
        return str(raw, "utf-8"), position
    except UnicodeDecodeError as error:
        raise ProtocolError(f"string is not UTF-8: {error}") from error


def read_string(buffer: Buffer, position: int, *, compact: bool) -> tuple[str, int]:
    text, position = read_nullable_string(buffer, position, compact=compact)
    if text is None:
        raise ProtocolError("null in a non-nullable string")
    return text, position


def read_array_length(
    buffer: Buffer, position: int, *, compact: bool, element_bytes_min: int = 1
) -> tuple[int, int]:
    """The number of elements, -1 for null. Refused if the remaining bytes cannot hold them."""
    if compact:
        length, position = read_unsigned_varint(buffer, position)
        length -= 1
    else:
        (length,) = INT32.unpack_from(buffer, position)
        position += 4
    if length * element_bytes_min > len(buffer) - position:
        raise ProtocolError(
            f"array of {length} elements exceeds the remaining {len(buffer) - position} bytes"
        )
    return max(length, -1), position


def skip_tags(buffer: Buffer, position: int) -> int:
    """The position after a tagged-field section, ignoring its fields."""
    count = buffer[position]
    if count == 0:
        return position + 1
    count, position = read_unsigned_varint(buffer, position)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise ProtocolError("tagged field exceeds the message")
    return position


def read_tags(buffer: Buffer, position: int) -> tuple[dict[int, Buffer], int]:
    """A tagged-field section: the raw bytes by tag."""
    count, position = read_unsigned_varint(buffer, position)
    tags: dict[int, Buffer] = {}
    for _ in range(count):
        tag, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        if position + size > len(buffer):
            raise ProtocolError("tagged field exceeds the message")
        tags[tag] = buffer[position : position + size]
        position += size
    return tags, position


def write_tags(tags: dict[int, bytes]) -> bytes:
    """A tagged-field section; tags in ascending order, as the protocol requires."""
    if not tags:
        return NO_TAGS
    parts = [write_unsigned_varint(len(tags))]
    for tag in sorted(tags):
        parts += (write_unsigned_varint(tag), write_unsigned_varint(len(tags[tag])), tags[tag])
    return b"".join(parts)


def write_nullable_string(text: str | None, *, compact: bool) -> bytes:
    if text is None:
        return b"\x00" if compact else b"\xff\xff"
    raw = text.encode()
    if compact:
        return write_unsigned_varint(len(raw) + 1) + raw
    return INT16.pack(len(raw)) + raw


def write_array_length(length: int, *, compact: bool) -> bytes:
    return write_unsigned_varint(length + 1) if compact else INT32.pack(length)


@lru_cache(maxsize=1024)
def uuid_of(raw: bytes) -> UUID:
    """A topic id from its sixteen bytes. Clients send the same few again and again."""
    if len(raw) != 16:
        raise ProtocolError("message truncated inside a topic id")
    return UUID(bytes=raw)
