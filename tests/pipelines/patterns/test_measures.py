"""Measures of matches, and what of a match comes out: cases of the standard, by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.pipelines.patterns.conditions import Scope
from millstream.pipelines.patterns.language import PatternError
from millstream.pipelines.patterns.measures import Evaluation, Matches, Part, parse_measure
from millstream.pipelines.state.trial import Trial
from tests.pipelines.patterns.operators import SCHEMA, operator_of, row

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCOPE = Scope({"a": 1, "b": 2}, 3)


def results(pattern: str, us: list[int], **given: Any) -> list[dict[str, Any]]:
    """Of a batch: rows a second apart; a is u < 4, b is 2 <= u < 8, c is u >= 6."""
    operator = operator_of(pattern, within=None, **given)
    names = [name for name in operator._compiled.program.variables if name in "abc"]
    rows = [
        row(names, "x", BEGIN + timedelta(seconds=place), u) | {"_offset": place}
        for place, u in enumerate(us)
    ]
    trial = Trial(operator)
    trial.feed({"events": pa.RecordBatch.from_pylist(rows, schema=SCHEMA)})
    found: list[dict[str, Any]] = trial.finish().to_pylist()
    return found


def shown(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The measures, and the row if there is one."""
    names = [name for name in (found[0] if found else {}) if name.startswith("m")]
    return [(*(it[name] for name in names), *([it["u"]] if "u" in it else [])) for it in found]


def matched(pattern: str, us: list[int], **given: Any) -> list[tuple[int, int]]:
    """The first and the last row of each match, by their place; (-1, -1) for empty ones."""
    found = results(pattern, us, **given)

    def place(at: datetime | None) -> int:
        return -1 if at is None else round((at - BEGIN).total_seconds())

    return [(place(it["m0_0"]), place(it["m1_0"])) for it in found]


@pytest.mark.parametrize(
    ("pattern", "us", "expected"),
    [
        # a is 0..3, b is 2..7, c is 6..9
        ("a b c", [0, 5, 9], [(0, 2)]),
        ("a+ b", [3, 3, 3], [(0, 2)]),  # greedy gives back
        ("a+? b", [3, 3, 3], [(0, 1)]),
        ("a b*", [0, 5, 5, 9], [(0, 2)]),
        ("a b*?", [0, 5, 5, 9], [(0, 0)]),
        ("a b?? c", [0, 7, 9], [(0, 1)]),  # 7 is b and c
        ("a b? c", [0, 7, 9], [(0, 2)]),
        ("(a | a b) c", [0, 7, 9], [(0, 1)]),  # the left alternative, not the longest match
        ("(a b | a) c", [0, 7, 9], [(0, 2)]),
        ("permute(a, b, c)", [9, 0, 5], [(0, 2)]),
        ("permute(a, b, c)", [9, 0, 8], []),
        ("a{2,3}", [0, 0, 0, 0, 0], [(0, 2), (3, 4)]),
        ("a{2,3}?", [0, 0, 0, 0, 0], [(0, 1), (2, 3)]),
        ("a{,2} c", [9, 0, 9, 0, 0, 0, 9], [(0, 0), (1, 2), (4, 6)]),
        ("^ a", [0, 0], [(0, 0)]),
        ("a $", [0, 0], [(1, 1)]),
        ("(a??)* b", [3, 5], [(0, 0), (1, 1)]),  # an iteration without a row ends the loop
        ("a*", [0, 9, 0], [(0, 0), (-1, -1), (2, 2)]),
        ("()", [0, 9], [(-1, -1), (-1, -1)]),
        ("a then c", [0, 5, 5, 9, 0, 9], [(0, 3), (4, 5)]),
        ("a then b then c", [0, 9, 5, 5, 9], [(0, 4)]),
        ("(a b) | c", [9, 0, 5, 0], [(0, 0), (1, 2)]),
        ("a b a", [0, 5, 0, 5, 0], [(0, 2)]),
    ],
)
def test_matches_are_those_of_the_standard(
    pattern: str, us: list[int], expected: list[tuple[int, int]]
) -> None:
    assert matched(pattern, us) == expected


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        ("past last row", [(0, 3)]),
        ("to next row", [(0, 3), (1, 3)]),
        ("to first b", [(0, 3), (1, 3)]),
        ("to last b", [(0, 3)]),
        ("to c", [(0, 3)]),
    ],
)
def test_skip_decides_where_the_next_match_begins(
    skip: str, expected: list[tuple[int, int]]
) -> None:
    assert matched("a b+ c", [3, 3, 5, 9], skip=skip) == expected


def test_one_row_sees_the_whole_match() -> None:
    measures = {
        "a1": "first(u)", "a2": "a.u", "a3": "first(b.u, 1)", "a4": "last(b.u, 1)",
        "a5": "last(b.u, 7)", "a6": "sum(b.u)", "a7": "avg(u)", "a8": "count(b)", "a9": "max(a.u)",
        "b1": "classifier()", "b2": "classifier(b)", "b3": "match_number()", "b4": "prev(a.u)",
        "b5": "next(c.u)", "b6": "prev(first(b.u), 1)", "b7": "first(classifier(), 1)",
    }  # fmt: skip
    found = results("a b+ c", [7, 1, 5, 6, 4, 9, 8], rows="one", **_replaced(measures))
    assert shown(found) == [(1, 1, 6, 6, None, 15, 5.0, 3, 1, "c", "b", 1, 7, 8, 1, "b")]


def _replaced(measures: dict[str, str]) -> dict[str, Any]:
    """Measures in place of those that `operator_of` adds."""
    (first, second, third), rest = list(measures.items())[:3], dict(list(measures.items())[3:])
    return {"first_at": first[1], "last_at": second[1], "n": third[1]} | rest


def test_all_rows_see_the_match_so_far() -> None:
    measures = {"n": "count(b)", "s": "running sum(u)", "whole": "final sum(u)"}
    found = results("a b+", [1, 5, 6, 9], rows="all", **measures, label="classifier()")
    assert shown(found) == [(0, 1, 12, "a", 1), (1, 6, 12, "b", 5), (2, 12, 12, "b", 6)]


def test_distinct_values_count_once() -> None:
    measures = {
        "a1": "count(distinct b.u)", "a2": "sum(distinct u)", "a3": "avg(distinct b.u)",
        "a4": "max(distinct u)", "a5": "array_agg(distinct b.u)", "a6": "count(b.u)",
    }  # fmt: skip
    found = results("a b+ c", [1, 5, 4, 5, 5, 9], rows="one", **_replaced(measures))
    assert shown(found) == [(2, 19, 4.5, 9, [5, 4], 4)]
    measures = {"n": "count(distinct u)", "whole": "final count(distinct u)"}
    found = results("a b+", [1, 5, 5, 6, 9], rows="all", **measures)
    assert shown(found) == [(1, 3, 1), (2, 3, 5), (2, 3, 5), (3, 3, 6)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([None, "x", None, "x"]), [None, "x"]),
        (pa.array([0.0, float("inf"), -0.0, float("inf")]), [0.0, float("inf")]),
    ],
)
def test_distinct_values_are_those_of_sql(values: pa.Array, expected: list[Any]) -> None:
    rows = pa.RecordBatch.from_arrays([values], names=["x"])
    place = np.array([0])
    matches = Matches(place, place + 4, np.zeros(4, np.uint8), place + 1, place, place + 4)
    part = Part("array_agg", 1, "x", is_final=True, column="x", is_distinct=True)
    evaluation = Evaluation(rows, matches, place, place + 4, ["A"])
    assert evaluation.column(part).to_pylist() == [expected]


def test_excluded_rows_are_left_out_and_counted() -> None:
    found = results("a {- b+ -} c", [1, 5, 5, 9], rows="all", n="count(*)")
    assert shown(found) == [(1, 1), (4, 9)]
    found = results("a then c", [1, 5, 5, 9], rows="all", n="count(*)")
    assert shown(found) == [(1, 1), (2, 9)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("all", [(1, 1, 1), (0, 2, 9), (1, 3, 1)]),
        ("all omitting empty", [(1, 1, 1), (1, 3, 1)]),
        ("all with unmatched", [(1, 1, 1), (0, 2, 9), (1, 3, 1)]),
    ],
)
def test_empty_matches_are_numbered_and_shown_if_wanted(rows: Any, expected: Any) -> None:
    found = results("a*", [1, 9, 1], rows=rows, n="count(*)", number="match_number()")
    assert sorted(shown(found), key=lambda it: it[1]) == expected


def test_unmatched_rows_have_no_measures() -> None:
    found = results("a b", [9, 1, 5, 1], rows="all with unmatched", n="count(*)")
    assert sorted((it["u"], it["m0_0"] or 0, it["_kind"]) for it in found) == [
        (1, 0, "unmatched"),
        (1, 1, "final"),
        (5, 2, "final"),
        (9, 0, "unmatched"),
    ]


def test_spark_gets_the_rest_of_a_measure() -> None:
    parsed = parse_measure(
        "round(max(b.u) - first(a.u), 2) || classifier()", SCOPE, "m", ["u"], is_final=True
    )
    assert parsed.text == "round(`m_0` - `m_1`, 2) || `m_2`"
    assert [it.function for it in parsed.parts.values()] == ["max", "first", "classifier_last"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("v + 1", "there is no column 'v'"), ("sum(classifier())", "sum of classifier")],
)
def test_measures_that_read_nothing_are_refused(text: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        parse_measure(text, SCOPE, "m", ["u"], is_final=True)
