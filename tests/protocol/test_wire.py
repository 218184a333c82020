"""Primitive types of the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ProtocolError
from millstream.protocol import wire


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varint_round_trips(value: int) -> None:
    encoded = wire.write_unsigned_varint(value)
    assert wire.read_unsigned_varint(b"?" + encoded + b"!", 1) == (value, 1 + len(encoded))


def test_unsigned_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError):
        wire.read_unsigned_varint(b"\xff" * 6, 0)


@given(st.one_of(st.none(), st.text(max_size=200)), st.booleans())
def test_nullable_string_round_trips(text: str | None, compact: bool) -> None:
    encoded = wire.write_nullable_string(text, compact=compact)
    assert wire.read_nullable_string(encoded, 0, compact=compact) == (text, len(encoded))


def test_string_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        wire.read_string(b"\x00\x01\xff", 0, compact=False)


def test_null_where_a_string_must_be_is_refused() -> None:
    with pytest.raises(ProtocolError, match="null"):
        wire.read_string(b"\x00", 0, compact=True)


@pytest.mark.parametrize("compact", [True, False])
def test_bytes_longer_than_the_message_are_refused(compact: bool) -> None:
    length = wire.write_unsigned_varint(101) if compact else b"\x00\x64"
    with pytest.raises(ProtocolError, match="field of 100 bytes"):
        wire.read_nullable_bytes(length + b"short", 0, compact=compact)


@pytest.mark.parametrize("compact", [True, False])
def test_array_longer_than_the_message_is_refused(compact: bool) -> None:
    length = wire.write_array_length(1_000_000, compact=compact)
    with pytest.raises(ProtocolError, match="array of 1000000"):
        wire.read_array_length(length + b"few", 0, compact=compact)


@given(st.dictionaries(st.integers(0, 1000), st.binary(max_size=50), max_size=5))
def test_tags_round_trip_in_ascending_order(tags: dict[int, bytes]) -> None:
    encoded = wire.write_tags(tags)
    read, end = wire.read_tags(encoded, 0)
    assert read == tags
    assert list(read) == sorted(tags)
    assert end == len(encoded) == wire.skip_tags(encoded, 0)


def test_tag_that_runs_past_the_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="tagged field exceeds"):
        wire.skip_tags(b"\x01\x00\x7f", 0)


def test_topic_id_of_too_few_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="topic id"):
        wire.uuid_of(b"short")
