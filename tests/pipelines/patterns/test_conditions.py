"""Conditions: which parts Spark evaluates, and the code of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millstream.pipelines.patterns.conditions import (
    Condition,
    Scope,
    Value,
    bits_of,
    compile_conditions,
    parse_condition,
    values_of,
)
from millstream.pipelines.patterns.language import PatternError
from tests.pipelines.patterns.machines import compiled, matches, run

SCOPE = Scope({"a": 1, "b": 2, "u": 3}, 3, {"a": "a", "b": "B"})


def condition(text: str, own: str = "b") -> Condition:
    return parse_condition(text, own, SCOPE)


def test_conditions_of_the_row_are_left_to_spark_unread() -> None:
    found = condition("anything [spark] ::understands, even this")
    assert found.row_parts == ("anything [spark] ::understands, even this",)
    assert found.kind == "reads the row"


def test_conditions_are_split_at_their_ands() -> None:
    found = condition("b.x > 5 and (y = 1 and x > 10 * avg(a.x))")
    assert found.row_parts == ("(x > 5)", "(y = 1)")
    assert found.kind == "reads the match"
    assert values_of([found]) == [Value("(x)")]


def test_neighbours_are_shifted_columns() -> None:
    found = condition("x < prev(x) and x < prev(b.x + 1, 2) and next(x) > 0")
    assert found.kind == "reads neighbour rows"
    shifts = {(it.text, it.shift) for it in values_of([found])}
    assert shifts == {("(x)", 0), ("(x)", 1), ("(x + 1)", 2), ("(x)", -1)}


def test_last_of_the_own_variable_is_the_row() -> None:
    assert condition("last(b.x) < last(x) + 1").kind == "reads neighbour rows"
    assert condition("last(b.x, 1) < 3").kind == "reads the match"


def test_classifier_is_the_own_name() -> None:
    assert condition("classifier() = 'B' and a.x > 1").row_parts == ("('B' = 'B')",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("upper(a.name) = 'X'", "upper cannot read the match"),
        ("case when a.x > 1 then true end", "case cannot read the match"),
        ("a.x like 'b'", "like cannot read the match"),
        ("match_number() > 1", "before it is known how many earlier ones"),
        ("count(distinct a.x) > 1", "each unfinished match would need all its values"),
        ("prev(first(classifier())) = 'A'", "PREV of that of its last row"),
        ("last(upper(classifier())) = 'A'", "classifier\\(\\) of other rows alone"),
        ("x > last(a.at) - interval 1 fortnight", "interval"),
    ],
)
def test_what_the_matcher_cannot_do_is_refused(text: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        condition(text)


@pytest.mark.parametrize(
    ("text", "kinds", "problem"),
    [
        ("a.name < name", {"(name)": "string"}, "= and <> only"),
        ("sum(a.name) > 1", {"(name)": "string"}, "sum of a string"),
        ("min(a.name) = name", {"(name)": "string"}, "min of a string"),
        ("a.at > 3", {"(at)": "timestamp"}, "a timestamp compared with a long"),
        ("a.at + at > at", {"(at)": "timestamp"}, "timestamp . timestamp"),
        ("a.x + 1", {"(x)": "long"}, "true or false"),
        ("not a.x", {"(x)": "long"}, "NOT of a long"),
        ("-a.name = 1", {"(name)": "string"}, "has no sign"),
    ],
)
def test_types_are_checked(text: str, kinds: dict[str, str], problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        compile_conditions([condition(text)], kinds)


X = [5, 7, None, 4, 7]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # rows of b in the longest match `a b*` from the first row, by hand
        ("x > a.x", [1]),
        ("x > a.x or x + a.x is null", [1, 2]),
        ("not (b.x <= a.x)", [1]),
        ("coalesce(x, 9) > 0 and first(a.x) = 5", [1, 2, 3, 4]),
        ("first(x) = 5 and last(x, 1) = 5", [1]),
        ("last(x, 1) is not null", [1, 2]),
        ("count(*) <= 3", [1, 2]),
        ("count(b.x) <= 1", [1, 2]),
        ("count(b) < 4", [1, 2, 3]),
        ("sum(u.x) < 16", [1, 2]),
        ("sum(u.x) <= 16 and avg(u.x) > 5.3", [1, 2, 3]),
        ("min(b.x) = 7", [1, 2]),
        ("max(u.x) = 7 and max(b.x) <> 4", [1, 2, 3, 4]),
        ("a.x / 0 is null", [1, 2, 3, 4]),
        ("a.x / 2 = 2.5", [1, 2, 3, 4]),
        ("first(b.x, 1) is null", [1, 2, 3, 4]),
        ("first(b.x, 2) is null", [1, 2]),
        ("abs(x - a.x) = 2", [1]),
        ("-a.x between -5 and -5 and x <=> b.x", [1, 2, 3, 4]),
        ("prev(a.x) is null and prev(b.x) is not null", [1, 2]),
        ("a.x * 2 + 1 - 1 >= 10 and true", [1, 2, 3, 4]),
        ("null = a.x", []),
        ("coalesce(prev(b.x), a.x, 1) = 5", [1]),
        ("coalesce(last(x, 1), 7.0) >= 5", [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("kind", ["long", "double"])
def test_conditions_are_evaluated_as_in_sql(text: str, expected: list[int], kind: str) -> None:
    texts = {"(x)": kind, "(coalesce(x, 9) > 0)": "boolean"}
    it = compiled("a b*", {"b": text}, texts, subsets={"u": 3})
    nulls = np.zeros((len(it.code.values), len(X)), np.uint8)
    values = np.zeros(nulls.shape, np.int64)
    for place, value in enumerate(it.code.values):
        shifted: list[Any] = [None] * value.shift + X[: len(X) - value.shift]
        nulls[place] = [x is None for x in shifted]
        values[place] = [bits_of(float(x or 0)) if kind == "double" else x or 0 for x in shifted]
    (first, *_) = matches(run(it, [3] + [2] * (len(X) - 1), values=values, nulls=nulls))
    assert list(range(1, first.end)) == expected


def test_overflow_is_an_error() -> None:
    it = compiled("a b", {"b": "a.x + x > 0"}, {"(x)": "long"})
    values = np.full((1, 2), 2**62, np.int64)
    with pytest.raises(OverflowError):
        run(it, [3, 3], values=values)
