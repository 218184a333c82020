"""The settings of patterns, checked before there are rows."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.patterns import match

SPREE = match(
    "small{2,} big",
    key="card",
    time="at",
    within="10 minutes",
    where={"small": "amount < 5", "big": "amount > 10 * avg(small.amount)"},
    n="count(small)",
)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"where": {"c": "x > 1"}}, "condition for c, which is not in the pattern a b"),
        ({"where": {"a": "b.x >"}}, "condition of a: the expression ends too early"),
        ({"skip": "somewhere"}, "skip='somewhere': choose past last row"),
        ({"skip": "to first c"}, "c is not in the pattern"),
        ({"rows": "most"}, "rows='most': choose one of"),
        ({"subsets": {"a": ["b"]}}, "subset a has the name of a variable"),
        ({"subsets": {"s": ["a", "c"]}}, "subset s names c"),
        ({"max_rows": 0}, "max_rows=0"),
        ({"buckets": "x"}, "buckets='x': it must be an integer"),
        ({"within": "0 s"}, "within"),
        ({"stragglers": "correct"}, "each result is emitted once"),
        ({"n": "sum(a.x"}, "measure n: expected '\\)'"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        match("a b", time="at", **({"n": "count(*)"} | given))


def test_one_row_needs_a_measure() -> None:
    with pytest.raises(ConfigError, match="needs a key or a measure"):
        match("a b", time="at")


@pytest.mark.parametrize("pattern", ["a {- b -} c", "a then b"])
def test_excluded_rows_are_neither_matched_nor_unmatched(pattern: str) -> None:
    with pytest.raises(ConfigError, match="neither matched nor unmatched"):
        match(pattern, time="at", rows="all with unmatched")


def test_identity_has_all_that_state_depends_on() -> None:
    def identity(**given: Any) -> str:
        settings = {"within": "1 minute", "where": {"a": "x > 1"}, "n": "count(*)"} | given
        return match("a b", time="at", **settings).identity()

    one = identity()
    assert '"within_us": 60000000' in one
    for other in (
        {"where": {"a": "x > 2"}}, {"n": "sum(x + 1)"}, {"max_rows": 3}, {"rows": "all"},
        {"order": "arrival"},
    ):  # fmt: skip
        assert identity(**other) != one
    assert identity(stragglers="divert") == one


def test_explain_shows_the_automaton_and_what_conditions_read() -> None:
    assert SPREE.explain().splitlines() == [
        "pattern small{2,} big",
        "within 10 minutes, at most 10000 rows",
        "in the order of time",
        "after a match: past last row",
        "condition of small: amount < 5 (reads the row)",
        "condition of big: amount > 10 * avg(small.amount) (reads the match)",
        "automaton",
        "  start ──── small ──▶ 1",
        "  1 ──────── small ──▶ 2",
        "  2 ─────┬── small ──▶ 2",
        "         └── big ────▶ match",
    ]


def test_details_have_the_automaton() -> None:
    details = match("a b", time="at", n="count(*)").details()
    assert details == {
        "condition of a": "any row",
        "condition of b": "any row",
        "automaton": "start ──── a ──▶ 1\n1 ──────── b ──▶ match",
    }


def test_subsets_stand_for_several_variables() -> None:
    it = match("a b", time="at", subsets={"s": ["a", "B"]}, n="count(s)")
    assert it.scope.bits == {"a": 1, "b": 2, "s": 3}


def test_limit_of_rows_comes_with_a_limit_of_time() -> None:
    assert SPREE.max_rows == 10_000
    assert match("a b", time="at", n="count(*)").max_rows > 10**9
