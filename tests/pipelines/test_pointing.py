"""A caret below the place in a text."""

from __future__ import annotations

import pytest

from millstream.pipelines.pointing import point_at


@pytest.mark.parametrize(
    ("text", "place", "line", "caret"),
    [
        ("a b", 2, "a b", "  ^"),
        ("a b", 3, "a b", "   ^"),  # the end
        ("", 0, "", "^"),
        ("a\nb c\nd", 4, "b c", "  ^"),
        ("a\tb", 2, "a b", "  ^"),
        ("x" * 200, 0, "x" * 97 + "...", "^"),
        ("x" * 70 + "y", 70, "..." + "x" * 40 + "y", " " * 43 + "^"),
    ],
)
def test_caret_is_below_the_place(text: str, place: int, line: str, caret: str) -> None:
    assert point_at(text, place).splitlines() == [f"    {line}", f"    {caret}"]
