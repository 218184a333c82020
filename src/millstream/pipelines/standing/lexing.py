"""Tokens of a standing query, and of the text query in `matches(column, '...')`.

    category = 'bike' AND price < 300       name, operator, string, keyword, name, operator, number
    tea AND "green leaf" NOT bag*           word, keyword, phrase, keyword, prefix

A token has its place in the text of the query, so that an error can point at it. The key of a
token has everything but the value of a literal: queries whose keys are equal differ in literals
only, and are parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from millstream.errors import MillstreamError
from millstream.pipelines.pointing import point_at
from millstream.pipelines.standing.words import words_of

TEXT_CHARACTERS_MAX = 10_000
KEYWORDS = frozenset(
    [
        "AND",
        "OR",
        "NOT",
        "IN",
        "BETWEEN",
        "IS",
        "NULL",
        "TRUE",
        "FALSE",
        "LIKE",
        "TIMESTAMP",
        "DATE",
    ]  # LIKE is refused
)
TEXT_KEYWORDS = frozenset(("AND", "OR", "NOT"))

_TOKEN = re.compile(
    r"""
  (?: (?P<number> -?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)? )
  | (?P<string> '(?:[^']|'')*' )
  | (?P<quoted> `[^`]+` | "[^"]+" )
  | (?P<name> [^\W\d]\w* )
  | (?P<operator> <= | >= | <> | != | == | [=<>(),.] )
  ) \s*
    """,
    re.VERBOSE,
)
_TEXT_TOKEN = re.compile(r'(?P<operator>[()])|"(?P<phrase>[^"]*)"|(?P<word>[^\s()"]+)')
_SPACE = re.compile(r"\s*")


class QueryError(MillstreamError):
    """A query that is refused: what is wrong, where, and what to do."""

    def __init__(self, text: str, place: int, problem: str, advice: str = "") -> None:
        self.text = text
        self.place = place
        self.problem = problem
        self.advice = advice
        lines = [problem, point_at(text, place)]
        super().__init__("\n".join([*lines, advice] if advice else lines))

    def reason(self) -> str:
        """The error in one line, for a dead letter."""
        advice = f" ({self.advice})" if self.advice else ""
        return f"at character {self.place + 1}: {self.problem}{advice}"


class Token(NamedTuple):
    """A piece of a query: `kind` is name, keyword, operator, number, string, word, prefix, phrase
    or end; `value` is its meaning: the name, the keyword in capitals, the words of a phrase."""

    kind: str
    value: str | tuple[str, ...]
    start: int
    end: int

    @property
    def key(self) -> str:
        """The token without the value of a literal."""
        if self.kind in ("number", "string", "word", "prefix"):
            return f"<{self.kind}>"
        if self.kind == "phrase":
            return f"<phrase {len(self.value)}>"
        return f"{self.kind} {self.value}"


def tokens_of(text: str) -> list[Token]:
    """The tokens of a query. The string of `matches` is replaced by the tokens of its text query,
    in operators `'`. Raises `QueryError`."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise QueryError(
            text[:200],
            0,
            f"the query has {len(text)} characters, more than {TEXT_CHARACTERS_MAX}",
            "Split it into several queries",
        )
    tokens: list[Token] = []
    place = _SPACE.match(text).end()  # type: ignore[union-attr]  # it always matches
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _unknown_character(text, place)
        token = _token(found)
        if token.kind == "keyword" and tokens and tokens[-1].value == ".":
            token = token._replace(kind="name", value=found["name"])  # a field
        if token.kind == "string" and _is_text_query(tokens):
            tokens += _text_tokens(text, token)
        else:
            tokens.append(token)
        place = found.end()
    tokens.append(Token("end", "", len(text), len(text)))
    return tokens


def _token(found: re.Match[str]) -> Token:
    kind = str(found.lastgroup)
    value = found[kind]
    if kind == "name" and value.upper() in KEYWORDS:
        kind, value = "keyword", value.upper()
    elif kind == "quoted":
        kind, value = "name", value[1:-1]
    elif kind == "string":
        value = value[1:-1].replace("''", "'")
    elif kind == "operator":
        value = {"!=": "<>", "==": "="}.get(value, value)
    return Token(kind, value, *found.span(str(found.lastgroup)))


def _unknown_character(text: str, place: int) -> QueryError:
    if text[place] == "'":
        return QueryError(text, place, "the string does not end", "Close it with '")
    advice = "Quote names with `...` and write text in '...'"
    if text[place] in "+-*/%|":
        advice = "Queries have no arithmetic: add the computed value as a column before matching"
    return QueryError(text, place, f"unexpected character {text[place]!r}", advice)


def _is_text_query(before: list[Token]) -> bool:
    """Whether a string after these tokens is the second argument of `matches`."""
    at = len(before) - 2
    while at > 1 and (before[at].kind == "name" or before[at].value == "."):
        at -= 1
    if not 1 <= at < len(before) - 2:
        return False
    function, parenthesis, comma = before[at - 1], before[at], before[-1]
    is_call = function.kind == "name" and str(function.value).lower() == "matches"
    return is_call and (parenthesis.value, comma.value) == ("(", ",")


def _text_tokens(text: str, literal: Token) -> list[Token]:
    """The tokens of the text query in a string, at their places in the whole query."""
    inside = str(literal.value)
    places = _places(text, literal)
    tokens = [Token("operator", "'", literal.start, literal.start + 1)]
    place = _SPACE.match(inside).end()  # type: ignore[union-attr]
    while place < len(inside):
        found = _TEXT_TOKEN.match(inside, place)
        if found is None:
            raise QueryError(
                text, places[place], "the phrase does not end", 'Close it with a second "'
            )
        start, end = places[found.start()], places[found.end() - 1] + 1
        tokens.append(_text_token(text, found, start, end))
        place = _SPACE.match(inside, found.end()).end()  # type: ignore[union-attr]
    tokens.append(Token("operator", "'", literal.end - 1, literal.end))
    return tokens


def _places(text: str, literal: Token) -> Sequence[int]:
    """For each character of a string its place in the query, where quotes are doubled."""
    if "'" not in literal.value:
        return range(literal.start + 1, literal.end - 1)
    places, place = [], literal.start + 1
    while place < literal.end - 1:
        places.append(place)
        place += 2 if text.startswith("''", place) else 1
    return places


def _text_token(text: str, found: re.Match[str], start: int, end: int) -> Token:
    kind, value = str(found.lastgroup), str(found.group(str(found.lastgroup)))
    if kind == "operator":
        return Token(kind, value, start, end)
    if kind == "word" and value in TEXT_KEYWORDS:
        return Token("keyword", value, start, end)
    if kind == "word" and value.endswith("*"):
        return _prefix_token(text, value, start, end)
    words = words_of(value)
    if not words:
        raise QueryError(
            text, start, f"there is no word in {value!r}", "Words are letters and digits"
        )
    if "*" in value:
        raise QueryError(
            text, start, f"{value!r} has a * before its end", "Only prefixes are possible: bag*"
        )
    if len(words) > 1:  # e-mail is the phrase "e mail"
        return Token("phrase", tuple(words), start, end)
    return Token("word", words[0], start, end)


def _prefix_token(text: str, value: str, start: int, end: int) -> Token:
    words = words_of(value[:-1])
    if len(words) != 1 or "*" in value[:-1] or not value[-2:-1].isalnum():
        raise QueryError(
            text, start, f"{value!r} is no prefix", "Write one word and then *, as in bag*"
        )
    return Token("prefix", words[0], start, end)
