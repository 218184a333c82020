"""Whole numbers in text that others wrote.

`str.isdigit` is also true of `²`, which `int` refuses, as it refuses more than 4,300 digits: a
header with such a text would stop every reader of the letter.
"""

from __future__ import annotations

DIGITS_MAX = 18  # so that it fits into 64 bits


def decimal(text: str | bytes | None) -> int | None:
    """A number of ASCII digits alone, of limited size; None for anything else."""
    if not text or len(text) > DIGITS_MAX or not text.isascii() or not text.isdigit():
        return None
    return int(text)
