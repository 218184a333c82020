"""Decimals as text, against Python's."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connect.tables.decimals import decimal_texts

EXACT = Context(prec=38)


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_decimal_is_written_with_all_its_digits(unscaled: int, scale: int) -> None:
    value = EXACT.scaleb(Decimal(unscaled), -scale)
    column = pa.array([value, None, Decimal(0)], pa.decimal128(38, scale))
    expected = [f"{value:f}", None, f"{EXACT.scaleb(Decimal(0), -scale):f}"]
    assert decimal_texts(column).to_pylist() == expected


def test_slices_and_chunks_are_taken_for_what_they_are() -> None:
    column = pa.array([Decimal("-0.00000001"), Decimal("12.5"), None], pa.decimal128(18, 8))
    chunked = pa.chunked_array([column.slice(1), column.slice(0, 1)])
    assert decimal_texts(chunked).to_pylist() == ["12.50000000", None, "-0.00000001"]
    assert decimal_texts(chunked.slice(0, 0)).to_pylist() == []


@pytest.mark.parametrize(("value", "text"), [("1200", "1200"), ("-100", "-100"), ("0", "0")])
def test_decimal_of_negative_scale_is_written_whole(value: str, text: str) -> None:
    assert decimal_texts(pa.array([Decimal(value)], pa.decimal128(10, -2))).to_pylist() == [text]
