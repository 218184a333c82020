"""Numbers in text that others wrote."""

from __future__ import annotations

import pytest

from millstream.admin.numbers import decimal


@pytest.mark.parametrize(("text", "number"), [("0", 0), (b"17", 17), ("9" * 18, 10**18 - 1)])
def test_digits_are_a_number(text: str | bytes, number: int) -> None:
    assert decimal(text) == number


@pytest.mark.parametrize("text", [None, "", b"", "²", "٣", "-1", " 1", "9" * 19, "9" * 5_000])
def test_anything_else_is_none(text: str | bytes | None) -> None:
    assert decimal(text) is None
