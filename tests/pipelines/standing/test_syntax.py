"""The grammar: what is refused, where, and with which advice."""

from __future__ import annotations

import pytest

from millstream.pipelines.standing.kinds import Kind
from millstream.pipelines.standing.lexing import QueryError, tokens_of
from millstream.pipelines.standing.syntax import Both, Compare, Either, IsNull, IsTrue, Not, parse

COLUMNS: dict[str, Kind | None] = {
    "n": "integer",
    "City": "text",
    "city2": "text",
    "sold": "boolean",
    "tags": None,
    "place": None,
    "place.zip": "integer",
    "place.Not": "boolean",
}


@pytest.mark.parametrize(
    ("text", "at", "problem", "advice"),
    [
        ("", "", "the query is empty", "Write a condition"),
        ("n = 1 n = 2", "n = 2", "unexpected 'n'", "AND or OR"),
        ("m = 1", "m", "no column 'm'", "Columns: n, City"),
        ("cit = 'x'", "cit", "no column 'cit'", "Did you mean"),
        ("tags = 'x'", "tags", "queries cannot use column 'tags'", "Convert it"),
        ("n = 1 OR tags = 'x'", "tags", "queries cannot use column 'tags'", "Convert it"),
        ("place = 'x'", "place", "queries cannot use column 'place'", "place.zip, place.Not"),
        ("place.zap = 1", "place", "no column 'place.zap'", "Did you mean place.zip?"),
        ("place.3 = 1", "place", "queries cannot use column 'place'", ""),
        ("place. = 1", "= 1", "a field expected after the point, not '='", ""),
        ("n", "", "a comparison expected after n, not end", "IS NULL"),
        ("n LIKE 'x'", "LIKE", "queries have no LIKE", "matches"),
        ("n = NULL", "NULL", "a comparison with NULL is never true", "IS NULL"),
        ("n = city", "city", "a literal expected after =, not the name", "with literals only"),
        ("n = (", "(", "a literal expected after =, not '('", ""),
        ("n NOT 3", "3", "IN or BETWEEN expected after NOT, not '3'", ""),
        ("n IS 3", "3", "NULL expected after IS, not '3'", ""),
        ("n IN 3", "3", "( expected after IN, not '3'", ""),
        ("n IN (3", "", ") expected after the list of IN, not end", ""),
        ("n BETWEEN 3", "", "AND expected between the bounds", ""),
        ("3 n", "n", "a comparison expected after the literal", ""),
        ("n = TIMESTAMP 3", "3", "a string expected after TIMESTAMP", ""),
        ("(n = 1", "", ") expected after the conditions", ""),
        ("AND n = 1", "AND", "a condition expected, not 'AND'", "Write a column first"),
        ("matches(n, 'x')", "n, ", "matches needs a column of text", ""),
        ("matches(3, 'x')", "3", "a column expected, not '3'", ""),
        ("matches(city, 3)", "3", "a text query expected, not '3'", "matches(text, 'tea')"),
        ("matches(city, '')", "')", "a word expected", "prefixes*"),
        ("matches(city, 'a OR')", "')", "a word expected", ""),
        ("matches(city, '(a')", "')", ") expected after the words", ""),
        ("(" * 40 + "n = 1", "(" * 7 + "n", "more than 32 levels", ""),
        (" OR ".join(["n = 1"] * 64), "n = 1", "more than 63 conditions", "Use IN"),
    ],
)
def test_error_names_the_problem_the_place_and_the_advice(
    text: str, at: str, problem: str, advice: str
) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text, tokens_of(text), COLUMNS)
    error = caught.value
    assert error.problem.startswith(problem)
    assert text[error.place :].startswith(at)
    assert advice in error.advice


def test_and_binds_more_than_or_and_not_most() -> None:
    text = "NOT n = 1 AND sold OR CITY IS NULL"
    tree = parse(text, tokens_of(text), COLUMNS)
    assert isinstance(tree, Either)
    both = tree.children[0]
    assert isinstance(both, Both)
    assert isinstance(both.children[0], Not)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("place.zip < 3", "place.zip"),
        ("3 > PLACE . `zip`", "place.zip"),
        ("place.not", "place.Not"),
        ("place IS NULL", "place"),
        ("tags IS NULL", "tags"),
    ],
)
def test_condition_is_on_a_column_or_a_field_and_any_type_may_be_null(
    text: str, column: str
) -> None:
    tree = parse(text, tokens_of(text), COLUMNS)
    assert isinstance(tree, Compare | IsNull | IsTrue)
    assert tree.column == column
    assert tree.tokens == (0, len(tokens_of(text)) - 2)


def test_words_beside_each_other_are_all_needed() -> None:
    text = "matches(City, 'a b OR NOT (c d)')"
    tree = parse(text, tokens_of(text), COLUMNS)
    assert isinstance(tree, Either)
    assert isinstance(tree.children[0], Both)
    assert isinstance(tree.children[1], Not)


def test_too_many_listed_values_are_refused() -> None:
    text = f"n IN ({', '.join(map(str, range(1001)))})"
    with pytest.raises(QueryError, match="more than 1000 values in IN"):
        parse(text, tokens_of(text), COLUMNS)
