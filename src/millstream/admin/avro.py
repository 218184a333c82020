"""Avro values for people: decoded by the schema with which they were written, with limits.

Slow and careful, unlike the decoders of pipelines: data and schema may come from anybody. Bytes
that do not match the schema raise `ValueError`, and so does what would grow without end, such as an
array that claims a trillion nulls.

Values become what JSON can hold: bytes as hex, decimals and times as text.
"""

from __future__ import annotations

import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from millstream.client.avro_schema import AvroType

ITEMS_MAX = 100_000
DEPTH_MAX = 100
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_VARINT_BITS_MAX = 64
_EPOCH = datetime(1970, 1, 1)
_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def decode_avro(data: bytes, schema: AvroType) -> Any:
    """The value that is all of `data`. Raises `ValueError`."""
    reader = _Reader(data)
    try:
        value = reader.read(schema, 0)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"the bytes do not match the schema: {error}") from None
    if reader.position != len(data):
        raise ValueError(f"{len(data) - reader.position} bytes are left after the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._items = 0

    def read(self, schema: AvroType, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError(f"nested in more than {DEPTH_MAX} levels")
        match schema.kind:
            case "record":
                return {it.name: self.read(it.type, depth + 1) for it in schema.fields}
            case "array":
                return list(self._items_of(schema, depth))
            case "map":
                return dict(self._entries_of(schema, depth))
            case "union":
                return self.read(_chosen(schema.items, self._long(), "branch"), depth + 1)
            case "enum":
                return _chosen(schema.symbols, self._long(), "symbol")
            case _:
                return _logical(schema, self._primitive(schema))

    def _primitive(self, schema: AvroType) -> Any:
        match schema.kind:
            case "null":
                return None
            case "boolean":
                return self._take(1) != b"\0"
            case "int" | "long":
                return self._long()
            case "float":
                return _FLOAT.unpack(self._take(4))[0]
            case "double":
                return _DOUBLE.unpack(self._take(8))[0]
            case "fixed":
                return self._take(schema.size)
            case "string":
                return self._take(self._long()).decode("utf-8")
            case _:
                return self._take(self._long())

    def _items_of(self, schema: AvroType, depth: int) -> Any:
        for _ in self._blocks():
            yield self.read(schema.items[0], depth + 1)

    def _entries_of(self, schema: AvroType, depth: int) -> Any:
        for _ in self._blocks():
            key = self._take(self._long()).decode("utf-8")
            yield key, self.read(schema.items[0], depth + 1)

    def _blocks(self) -> Any:
        """One turn per item of all blocks."""
        while count := self._long():
            if count < 0:  # followed by the size of the block
                count = -count
                self._long()
            self._items += count
            if self._items > ITEMS_MAX:
                raise ValueError(f"more than {ITEMS_MAX} items")
            yield from range(count)

    def _long(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift >= _VARINT_BITS_MAX + 6:
                raise ValueError("a number has too many bytes")

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self._data):
            left = len(self._data) - self.position
            raise ValueError(f"a field claims {size} bytes, but {left} are left")
        taken = self._data[self.position : end]
        self.position = end
        return taken


def _chosen(choices: Any, index: int, what: str) -> Any:
    if not 0 <= index < len(choices):
        raise ValueError(f"{what} {index} of {len(choices)}")
    return choices[index]


def _logical(schema: AvroType, value: Any) -> Any:
    """The value as its logical type means it, as text that JSON can hold."""
    logical = schema.logical
    if logical == "decimal":
        unscaled = int.from_bytes(value, "big", signed=True)
        return str(Decimal(unscaled).scaleb(-schema.scale))
    if logical == "uuid":
        return str(UUID(bytes=value)) if isinstance(value, bytes) else value
    if isinstance(value, bytes):
        return value.hex()
    if logical == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    kind, _, unit = logical.rpartition("-")
    if kind == "time":
        return _clock_time(value, _PER_SECOND[unit])
    if kind in ("timestamp", "local-timestamp"):
        return _moment(value, _PER_SECOND[unit], is_local=kind == "local-timestamp")
    return value


def _clock_time(value: int, per_second: int) -> str:
    whole = (datetime.min + timedelta(microseconds=value * 1_000_000 // per_second)).time()
    return time.isoformat(whole)


def _moment(value: int, per_second: int, *, is_local: bool) -> str:
    seconds, part = divmod(value, per_second)
    moment = _EPOCH + timedelta(seconds=seconds)
    digits = len(str(per_second)) - 1
    text = f"{moment.isoformat()}.{part:0{digits}d}"
    return text if is_local else text + "Z"
