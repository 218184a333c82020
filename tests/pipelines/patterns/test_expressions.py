"""The text of conditions and measures."""

from __future__ import annotations

import pytest

from millstream.pipelines.patterns.expressions import (
    parse_expression,
    reads_match,
    row_text,
    walk,
)
from millstream.pipelines.patterns.language import PatternError

VARIABLES = {"a": 1, "b": 2}


def test_variables_differ_from_structs() -> None:
    assert reads_match("A.price > 3", VARIABLES)
    assert not reads_match("s.a.price > 3", VARIABLES)
    assert not reads_match("note = 'first(a.x)'", VARIABLES)
    assert reads_match("price > PREV(price)", VARIABLES)
    assert not reads_match("first > 3", VARIABLES)


def test_precedence_is_that_of_sql() -> None:
    node = parse_expression("not x = 1 + 2 * 3 or y is not null and z", VARIABLES)
    assert node.kind == "or"
    assert [it.kind for it in node.args] == ["not", "and"]
    assert node.args[1].args[0].kind == "is_not_null"
    total = node.args[0].args[0].args[1]
    assert (total.name, total.args[1].name) == ("+", "*")


@pytest.mark.parametrize(
    "text",
    [
        "case when a.x > 1 then 'y' else z end = 'y'",
        "x between 1 and 3 and y in (1, 2, 3)",
        "x not like 'a%' or x rlike '^b'",
        "cast(x as decimal(10, 2)) > 3",
        "at - interval '5' minute < last(b.at)",
        "m[1].f > 0 and x::double < 1e3 -- a comment",
        "coalesce(x, 0) <=> null",
        "final last(a.x, 2) - running sum(b.y) > prev(first(a.x, 1), 2)",
    ],
)
def test_grammar_of_spark_is_accepted(text: str) -> None:
    assert parse_expression(text, VARIABLES)


def test_text_for_spark_has_no_variables() -> None:
    text = "abs(b.x - b.`y z`) * 2"
    assert row_text(text, parse_expression(text, VARIABLES)) == "abs(x - `y z`) * 2"


def test_navigation_has_offsets() -> None:
    node = parse_expression("prev(last(a.x, 2), 3)", VARIABLES)
    assert (node.name, node.offset) == ("prev", 3)
    assert (node.args[0].name, node.args[0].offset) == ("last", 2)
    assert parse_expression("prev(x)", VARIABLES).offset == 1


def test_count_takes_rows() -> None:
    for text, variable in (("count(*)", None), ("count(a)", "a"), ("count(B.*)", "b")):
        (rows,) = parse_expression(text, VARIABLES).args
        assert (rows.kind, rows.variable) == ("rows", variable)
    assert any(it.kind == "column" for it in walk(parse_expression("count(x)", VARIABLES)))


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ("", "is missing", 0),
        ("x >", "ends too early", 3),
        ("x > 1)", "unexpected ')'", 5),
        ("x ? y", "unexpected '?'", 2),
        ("first(prev(x))", "prev within first", 6),
        ("sum(a.x + b.y)", "several variables", 4),
        ("count(distinct *)", "needs a column", 15),
        ("last(x, y)", "whole number", 8),
        ("last(x, 999)", "at most 100", 8),
        ("sum(*)", "unexpected '*'", 4),
        ("sum(a.*)", "needs a column", 4),
        ("first(1)", "must name a column", 6),
        ("classifier(x)", "takes a variable", 11),
        ("match_number(1)", "no arguments", 12),
        ("final prev(x) > 1", "belongs before FIRST", 0),
        ("x in (1, 2", "expected ')'", 10),
    ],
)
def test_errors_point_at_the_place(text: str, problem: str, place: int) -> None:
    with pytest.raises(PatternError) as caught:
        parse_expression(text, VARIABLES)
    assert problem in str(caught.value)
    assert caught.value.place == place


def test_nesting_has_a_limit() -> None:
    with pytest.raises(PatternError, match="more than 100"):
        parse_expression("(" * 120 + "x" + ")" * 120, VARIABLES)
