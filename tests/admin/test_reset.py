"""Targets of a reset, as far as they need no cluster; the rest is in test_group."""

from __future__ import annotations

import pytest

from millstream.admin.errors import InvalidArgument
from millstream.admin.reset import Target, parse_indexes


def test_target_takes_exactly_one() -> None:
    assert Target(offset=0).offset == 0
    assert Target(shift=0).shift == 0
    for fields in ({}, {"earliest": True, "latest": True}, {"offset": 0, "shift": 0}):
        with pytest.raises(InvalidArgument, match="exactly one"):
            Target(**fields)  # type: ignore[arg-type]


def test_parse_indexes_sorts_and_refuses_words() -> None:
    assert parse_indexes("2,0,2", "t:2,0,2") == [0, 2]
    with pytest.raises(InvalidArgument, match="NAME:0,1,2"):
        parse_indexes("a", "t:a")
