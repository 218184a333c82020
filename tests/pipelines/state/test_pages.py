"""A page's bytes: there and back, and never wrong without a word."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.state.pages import (
    INDEX_MAGIC,
    CorruptState,
    StateMismatch,
    decode_page,
    encode_page,
    seal,
    unseal,
)
from tests.drawing import draws
from tests.pipelines.state.rows import ROWS, Row, hashed

PAGE = encode_page(hashed([Row("ann", 1, 2, 3), Row(None, None, 5, 6)]))


@given(st.lists(ROWS), st.booleans())
def test_page_comes_back(rows: list[Row], compressed: bool) -> None:
    assert decode_page(encode_page(hashed(rows), compressed=compressed)).equals(hashed(rows))


@settings(max_examples=draws(300))
@given(st.integers(0, len(PAGE) - 1), st.integers(1, 255))
def test_changed_byte_is_noticed(place: int, change: int) -> None:
    damaged = bytearray(PAGE)
    damaged[place] ^= change
    with pytest.raises((CorruptState, StateMismatch)):
        decode_page(bytes(damaged))


@given(st.integers(0, len(PAGE) - 1))
def test_missing_end_is_noticed(length: int) -> None:
    with pytest.raises(CorruptState):
        decode_page(PAGE[:length])


def test_damage_is_explained() -> None:
    with pytest.raises(CorruptState, match=r"checksum does not match\. Restore the checkpoint"):
        decode_page(PAGE[:-1] + b"?")
    with pytest.raises(CorruptState, match="not a page of state"):
        decode_page(b"something else")
    with pytest.raises(StateMismatch, match="of state: 9; this Millstream reads 5 and 6"):
        decode_page(PAGE[:3] + b"\x09" + PAGE[4:])
    with pytest.raises(CorruptState, match="has no readable rows"):
        decode_page(seal(b"MSP", b"no arrow stream"))


def test_index_is_no_page() -> None:
    assert bytes(unseal(INDEX_MAGIC, seal(INDEX_MAGIC, b"{}"))) == b"{}"
    with pytest.raises(CorruptState):
        unseal(INDEX_MAGIC, PAGE)


def test_layout_is_the_one_of_the_specification() -> None:
    sealed = seal(INDEX_MAGIC, b"123456789")
    assert sealed == b"MSI\x06" + (0xE3069283).to_bytes(4, "little") + b"123456789"
