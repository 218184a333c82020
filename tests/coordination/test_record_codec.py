"""Kafka's wire types, against bytes laid out by hand."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.record_codec import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    ArrayOf,
    CorruptRecord,
    Field,
    NullableStruct,
    Reader,
    RecordCodec,
    RecordType,
    Schema,
    write_varint,
)


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    name: str
    note: str | None
    blob: bytes
    numbers: tuple[int, ...]
    added: int = -1
    tagged: int = 0
    inner: Inner | None = None


INNER = Schema(Inner, (Field("number", INT8),), flexible_since=1)
OUTER = Schema(
    Outer,
    (
        Field("name", STRING),
        Field("note", NULLABLE_STRING),
        Field("blob", BYTES),
        Field("numbers", ArrayOf(INT32)),
        Field("added", INT64, since=1, default=-1),
        Field("tagged", INT32, since=1, tag=0, default=0),
        Field("inner", NullableStruct(INNER), since=1, tag=1),
    ),
    flexible_since=1,
)
VALUE = Outer("ab", None, b"xyz", (1, 2))


def test_plain_version_has_fixed_lengths() -> None:
    expected = (
        b"\x00\x02ab\xff\xff\x00\x00\x00\x03xyz\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x02"
    )
    assert OUTER.encode(VALUE, 0) == expected
    assert OUTER.decode(expected, 0) == VALUE


def test_flexible_version_has_varint_lengths_and_tags() -> None:
    value = Outer("ab", "", b"xyz", (1,), added=7, tagged=5, inner=Inner(3))
    expected = (
        b"\x03ab"
        b"\x01"
        b"\x04xyz"
        b"\x02\x00\x00\x00\x01"
        b"\x00\x00\x00\x00\x00\x00\x00\x07"
        b"\x02"  # two tagged fields
        b"\x00\x04\x00\x00\x00\x05"
        b"\x01\x03\x01\x03\x00"  # a nullable struct: 1, its field, no tags of its own
    )
    assert OUTER.encode(value, 1) == expected
    assert OUTER.decode(expected, 1) == value


def test_tagged_field_at_its_default_is_left_out() -> None:
    assert OUTER.encode(VALUE, 1).endswith(b"\x00")
    assert OUTER.decode(OUTER.encode(VALUE, 1), 1) == VALUE


def test_unknown_tag_is_skipped() -> None:
    encoded = OUTER.encode(VALUE, 1)[:-1] + b"\x01\x09\x03abc"
    assert OUTER.decode(encoded, 1) == VALUE


@given(st.integers(0, 2**32 - 1))
def test_varint_reads_what_was_written(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    reader = Reader(bytes(out))
    assert reader.varint() == value
    assert reader.position == len(out)


def test_varint_of_six_bytes_is_corrupt() -> None:
    with pytest.raises(CorruptRecord):
        Reader(b"\xff" * 6).varint()


@given(st.binary(max_size=60), st.integers(0, 1))
def test_any_bytes_decode_or_are_corrupt(data: bytes, version: int) -> None:
    """No other exception, and no memory for lengths that lie."""
    with contextlib.suppress(CorruptRecord):
        OUTER.decode(data, version)


@pytest.mark.parametrize("version", [0, 1])
def test_truncated_bytes_are_corrupt(version: int) -> None:
    encoded = OUTER.encode(VALUE, version)
    for size in range(len(encoded)):
        with pytest.raises(CorruptRecord):
            OUTER.decode(encoded[:size], version)


def test_null_where_it_is_not_allowed_is_an_error() -> None:
    with pytest.raises(ValueError, match="null"):
        OUTER.encode(Outer(None, None, b"", ()), 0)  # type: ignore[arg-type]
    with pytest.raises(CorruptRecord):
        ArrayOf(INT32).reader(0, False)(Reader(b"\xff\xff\xff\xff"))


def test_string_that_is_not_utf8_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="UTF-8"):
        STRING.reader(0, False)(Reader(b"\x00\x01\xff"))


def test_uuid_takes_sixteen_bytes() -> None:
    value = uuid.uuid4()
    out = bytearray()
    UUID.writer(0, False)(out, value)
    assert bytes(out) == value.bytes
    assert UUID.reader(0, False)(Reader(bytes(out))) == value


@dataclass(frozen=True)
class Key:
    name: str


CODEC = RecordCodec(
    (RecordType(9, Schema(Key, (Field("name", STRING),)), INNER, newest_version=1),),
    value_version=lambda value: 1,
)


def test_codec_leads_with_type_and_version() -> None:
    assert CODEC.encode(Key("k"), Inner(4)) == (b"\x00\x09\x00\x01k", b"\x00\x01\x04\x00")
    assert CODEC.encode(Key("k"), None) == (b"\x00\x09\x00\x01k", None)


def test_codec_reads_older_versions_and_tombstones() -> None:
    assert CODEC.decode(b"\x00\x09\x00\x01k", b"\x00\x00\x04") == (Key("k"), Inner(4))
    assert CODEC.decode(b"\x00\x09\x00\x01k", None) == (Key("k"), None)


def test_codec_skips_types_that_it_does_not_know() -> None:
    assert CODEC.decode(b"\x00\x63whatever", b"") is None


def test_codec_refuses_versions_that_it_does_not_know() -> None:
    with pytest.raises(CorruptRecord, match="unsupported version: Inner v2"):
        CODEC.decode(b"\x00\x09\x00\x01k", b"\x00\x02\x04\x00")
    with pytest.raises(CorruptRecord):
        CODEC.decode(b"\x00", b"")
