"""Tokens of queries, and errors that point at their place."""

from __future__ import annotations

import pytest

from millstream.pipelines.standing.lexing import QueryError, tokens_of


def test_tokens_have_kinds_values_and_places() -> None:
    text = "`a b` != -1.5 AND c IN ('it''s')"
    found = [(it.kind, it.value, text[it.start : it.end]) for it in tokens_of(text)]
    assert found == [
        ("name", "a b", "`a b`"),
        ("operator", "<>", "!="),
        ("number", "-1.5", "-1.5"),
        ("keyword", "AND", "AND"),
        ("name", "c", "c"),
        ("keyword", "IN", "IN"),
        ("operator", "(", "("),
        ("string", "it's", "'it''s'"),
        ("operator", ")", ")"),
        ("end", "", ""),
    ]


def test_text_query_is_part_of_the_tokens() -> None:
    text = """matches(t, 'it''s "Green  leaf" bag* AND x')"""
    found = [(it.kind, it.value, text[it.start : it.end]) for it in tokens_of(text)][4:-2]
    assert found == [
        ("operator", "'", "'"),
        ("phrase", ("it", "s"), "it''s"),
        ("phrase", ("green", "leaf"), '"Green  leaf"'),
        ("prefix", "bag", "bag*"),
        ("keyword", "AND", "AND"),
        ("word", "x", "x"),
        ("operator", "'", "'"),
    ]


def test_key_has_everything_but_literals() -> None:
    def key(text: str) -> list[str]:
        return [it.key for it in tokens_of(text)]

    assert key("a = 'x' AND b < 3") == key("a='y' and b<4.5")
    assert key("a = 1") != key("b = 1")
    assert key("matches(a, 'x \"y z\"')") == key("matches(a, 'u \"v w\"')")
    assert key("matches(a, 'x \"y z\"')") != key("matches(a, 'x \"y z u\"')")


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a = 'x", 4, "the string does not end"),
        ("a + 1 > 2", 2, "unexpected character '+'"),
        ("matches(t, 'a \"b')", 14, "the phrase does not end"),
        ("matches(t, 'a &')", 14, "there is no word in '&'"),
        ("matches(t, 'a*b')", 12, "'a*b' has a * before its end"),
        ("matches(t, 'a-b*')", 12, "'a-b*' is no prefix"),
        ("matches(t, '*')", 12, "'*' is no prefix"),
        ("a = 1 AND " * 2000, 0, "the query has 20000 characters, more than 10000"),
    ],
)
def test_error_has_its_place(text: str, place: int, problem: str) -> None:
    with pytest.raises(QueryError) as caught:
        tokens_of(text)
    assert (caught.value.place, caught.value.problem) == (place, problem)


def test_message_points_at_the_place_in_its_line() -> None:
    error = QueryError("a = 1 AND\n  b ! 2", 14, "unexpected character '!'", "Write !=")
    expected = ["unexpected character '!'", "      b ! 2", "        ^", "Write !="]
    assert str(error).splitlines() == expected
    assert error.reason() == "at character 15: unexpected character '!' (Write !=)"


def test_message_of_a_long_line_is_cut_around_the_place() -> None:
    lines = str(QueryError("a" * 80 + "!" + "b" * 300, 80, "wrong")).splitlines()
    assert len(lines[1]) <= 104
    assert lines[1][lines[2].index("^")] == "!"
