"""The syntax of patterns, and errors that show the place."""

from __future__ import annotations

import pytest

from millstream.pipelines.patterns.language import (
    Alternatives,
    Anchor,
    Empty,
    Excluded,
    Gap,
    PatternError,
    Permutation,
    Repeated,
    Sequence,
    Variable,
    longest,
    parse_pattern,
    variables_of,
)

A, B = Variable("a", "a", 0), Variable("b", "b", 2)


def test_parts_follow_each_other() -> None:
    assert parse_pattern("a b") == Sequence((A, B))


def test_concatenation_binds_closer_than_alternatives() -> None:
    tree = parse_pattern("a b | c")
    assert isinstance(tree, Alternatives)
    assert tree.parts[0] == Sequence((A, B))


@pytest.mark.parametrize(
    ("text", "least", "most", "is_greedy"),
    [
        ("a*", 0, None, True),
        ("a+", 1, None, True),
        ("a?", 0, 1, True),
        ("a{3}", 3, 3, True),
        ("a{3,}", 3, None, True),
        ("a{2, 4}", 2, 4, True),
        ("a{,4}", 0, 4, True),
        ("a*?", 0, None, False),
        ("a??", 0, 1, False),
        ("a{2,4}?", 2, 4, False),
    ],
)
def test_quantifiers(text: str, least: int, most: int | None, is_greedy: bool) -> None:
    assert parse_pattern(text) == Repeated(A, least, most, is_greedy)


def test_groups_exclusions_anchors_and_nothing() -> None:
    assert parse_pattern("^ ( ) $") == Sequence((Anchor(True, 0), Empty(), Anchor(False, 6)))
    assert parse_pattern("{- a -}+") == Repeated(Excluded(Variable("a", "a", 3)), 1, None, True)


def test_permute_is_a_keyword_only_before_a_parenthesis() -> None:
    assert isinstance(parse_pattern("PERMUTE(a, b c)"), Permutation)
    assert parse_pattern("permute") == Variable("permute", "permute", 0)


def test_then_leaves_a_gap() -> None:
    assert parse_pattern("a THEN b") == Sequence((A, Gap(), Variable("b", "b", 7)))


def test_variables_are_the_same_in_upper_and_lower_case() -> None:
    found = variables_of(parse_pattern('Small small "Small" BIG'))
    assert [it.name for it in found.values()] == ["Small", "Small", "BIG"]
    assert list(found) == ["small", "Small", "big"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [("a b{2,3} c?", 5), ("(a | b b)", 2), ("a*", None), ("a then b", None), ("permute(a, b)", 2)],
)
def test_longest_match(text: str, rows: int | None) -> None:
    assert longest(parse_pattern(text)) == rows


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ("", "is empty", 0),
        ("a (b c", "'(' is not closed with ')'", 2),
        ("a) b", "')' closes nothing", 1),
        ("a | | b", "missing before '|'", 4),
        ("a {2", "a quantifier is", 2),
        ("+ a", "a quantifier without a part", 0),
        ("a{4,2}", "at least 4 and at most 2", 1),
        ("a{,}", "needs a number", 1),
        ("a{2000}", "more than 1000", 1),
        ("a{0}", "occurs 0 times", 1),
        ("a+*", "a quantifier of a quantifier", 2),
        ("a & b", "unexpected '&'", 2),
        ("then a", "missing before 'then'", 0),
        ("a then", "missing after 'then'", 6),
        ("permute(a, b, c, d, e, f, g)", "at most 6", 0),
        ("permute(a,, b)", "missing before ','", 10),
    ],
)
def test_errors_point_at_the_place(text: str, problem: str, place: int) -> None:
    with pytest.raises(PatternError) as caught:
        parse_pattern(text)
    assert problem in str(caught.value)
    assert caught.value.place == place
    lines = str(caught.value).splitlines()
    assert lines[1:] == [f"    {text}", "    " + " " * place + "^"]


def test_groups_have_a_limit() -> None:
    with pytest.raises(PatternError, match="more than 100 groups"):
        parse_pattern("(" * 101 + "a" + ")" * 101)
