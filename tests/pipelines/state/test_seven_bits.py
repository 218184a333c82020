"""Bytes of seven bits are all there is, and give back what they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.state.seven_bits import from_seven_bits, to_seven_bits


@given(st.binary(max_size=200))
def test_bytes_come_back_and_travel_in_seven_bits(blob: bytes) -> None:
    encoded = to_seven_bits(blob)
    assert all(byte < 128 for byte in encoded)
    assert len(encoded) == len(blob) + -(-len(blob) // 7)
    assert from_seven_bits(encoded) == blob


@pytest.mark.parametrize(
    ("blob", "encoded"),
    [
        (b"", ""),
        (b"\xff", "7f 01"),
        (b"\x80\x01\x00\x00\x00\x00\xff", "00 01 00 00 00 00 7f 41"),
        (b"\x80" * 8, "00 00 00 00 00 00 00 00 0f 0f"),
    ],
)
def test_layout_is_what_the_specification_says(blob: bytes, encoded: str) -> None:
    assert to_seven_bits(blob).hex(" ") == encoded
