"""Names in paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.console.paths import link, name_of, segment

NAMES = [
    "orders",
    "a/b",
    "..",
    ".",
    "",
    "~",
    "~x",
    "a b",
    "ä",
    "<script>",
    "%2F",
    "a%2Fb",
    "?q=1#x",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_come_back(name: str) -> None:
    escaped = segment(name)
    assert name_of(escaped) == name
    assert escaped not in ("", ".", "..")
    assert not set(escaped) & set('/?#<>"& ')


@given(st.text())
def test_any_name_comes_back(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    assert name_of(segment(name)) == name


def test_links_join_names() -> None:
    assert link("topics", "a/b", "messages") == "/topics/a%2Fb/messages"
