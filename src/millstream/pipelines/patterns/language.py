"""The text of a pattern, parsed to a tree.

    small{2,} big           concatenation; a variable stands for one row
    (up | down)+ flat       alternatives, the left one preferred; groups
    * + ? {n} {n,} {n,m} {,m}    quantifiers, greedy; with another ? reluctant: *? +? ?? {n,m}?
    permute(a, b, c)        all orders, preferred as they are listed
    {- a+ -}                rows that match, but are not in the output of all rows
    ^ $                     the first and the last row of a key
    ()                      matches without a row
    order then payment      any rows between, which are not part of the match

Keywords and variables are the same in upper and lower case; a variable in double quotes keeps its
case. Every error has the text with a caret under the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.pointing import point_at

REPEATS_MAX = 1000  # of one quantifier
PERMUTED_MAX = 6  # the parts of PERMUTE: 720 orders
DEPTH_MAX = 100  # of nested groups

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>[A-Za-z_][A-Za-z_0-9]*) | "(?P<quoted>[^"]+)"
      | (?P<open_excluded>\{-) | (?P<close_excluded>-\})
      | (?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\})
      | (?P<symbol>[()|*+?,^$])
    )""",
    re.VERBOSE,
)


class PatternError(ConfigError):
    """Text that is wrong; the message has a caret under the place."""

    def __init__(self, problem: str, text: str, place: int) -> None:
        super().__init__(f"{problem}\n{point_at(text, place)}")
        self.place = place


@dataclass(frozen=True)
class Empty:
    """Matches without a row."""


@dataclass(frozen=True)
class Variable:
    """A row that fulfils the condition of the variable; `key` identifies it."""

    name: str
    key: str
    place: int


@dataclass(frozen=True)
class Gap:
    """Any rows, as few as possible, that are not part of the match: `then`."""


@dataclass(frozen=True)
class Anchor:
    """The beginning or the end of the rows of a key."""

    is_start: bool
    place: int


@dataclass(frozen=True)
class Sequence:
    """One part after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Alternatives:
    """One of the parts, an earlier one preferred."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Permutation:
    """All parts in any order; orders are preferred as in a dictionary."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Excluded:
    """A part whose rows are not in the output of all rows."""

    part: Node


@dataclass(frozen=True)
class Repeated:
    """A part several times; `most` is None without a limit."""

    part: Node
    least: int
    most: int | None
    is_greedy: bool


Node: TypeAlias = (
    Empty | Variable | Gap | Anchor | Sequence | Alternatives | Permutation | Excluded | Repeated
)


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def parse_pattern(text: str) -> Node:
    """The tree of a pattern. Raises `PatternError`."""
    return _Parser(text).parse()


def variables_of(node: Node) -> dict[str, Variable]:
    """The variables by key, in the order of their first place in the text."""
    found: dict[str, Variable] = {}
    for it in walk(node):
        if isinstance(it, Variable):
            found.setdefault(it.key, it)
    return found


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the order of the text."""
    yield node
    if isinstance(node, Sequence | Alternatives | Permutation):
        for part in node.parts:
            yield from walk(part)
    elif isinstance(node, Excluded | Repeated):
        yield from walk(node.part)


def longest(node: Node) -> int | None:
    """The most rows that a match can have; None if there is no limit."""
    if isinstance(node, Variable):
        return 1
    if isinstance(node, Gap):
        return None
    if isinstance(node, Sequence | Permutation | Alternatives):
        lengths = [longest(part) for part in node.parts]
        if any(it is None for it in lengths):
            return None
        known = [it for it in lengths if it is not None]
        return max(known) if isinstance(node, Alternatives) else sum(known)
    if isinstance(node, Excluded):
        return longest(node.part)
    if isinstance(node, Repeated):
        part = longest(node.part)
        if part == 0:
            return 0
        return None if part is None or node.most is None else part * node.most
    return 0


def identity_of(name: str) -> str:
    """What identifies a variable that is written without quotes."""
    return name.lower()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._peek.kind == "end":
            raise self._error("the pattern is empty: name at least one variable, or write ()")
        node = self._alternatives()
        if self._peek.kind != "end":
            raise self._error(f"{self._peek.text!r} closes nothing")
        return node

    def _split(self) -> Iterator[_Token]:
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                place = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                hint = "a quantifier is {n}, {n,}, {n,m} or {,m}"
                is_brace = self._text[place] == "{"
                raise PatternError(
                    hint if is_brace else f"unexpected {self._text[place]!r} in the pattern",
                    self._text,
                    place,
                )
            kind = str(found.lastgroup)
            yield _Token(kind, found[kind], found.start(kind))
            at = found.end()
        yield _Token("end", "the end", end)

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is(self, text: str) -> bool:
        token = self._peek
        if token.kind == "name":
            return token.text.lower() == text
        return token.kind not in ("quoted", "end") and token.text == text

    def _error(self, problem: str, token: _Token | None = None) -> PatternError:
        return PatternError(problem, self._text, (token or self._peek).place)

    def _alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._is("|"):
            self._take()
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while not (self._peek.kind in ("end", "close_excluded") or self._symbol_in(")|,")):
            if self._is("then"):
                parts.append(self._gap(parts))
            else:
                parts.append(self._quantified())
        if not parts:
            raise self._error(f"a part of the pattern is missing before {self._peek.text!r}")
        if isinstance(parts[-1], Gap):
            raise self._error("a part of the pattern is missing after 'then'")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _gap(self, before: list[Node]) -> Gap:
        token = self._take()
        if not before or isinstance(before[-1], Gap):
            raise self._error("a part of the pattern is missing before 'then'", token)
        return Gap()

    def _symbol_in(self, symbols: str) -> bool:
        return self._peek.kind == "symbol" and self._peek.text in symbols

    def _quantified(self) -> Node:
        part = self._primary()
        if not (self._peek.kind == "count" or self._symbol_in("*+?")):
            return part
        token = self._take()
        least, most = self._counts(token)
        is_greedy = not self._is("?")
        if not is_greedy:
            self._take()
        if self._peek.kind == "count" or self._symbol_in("*+?"):
            raise self._error("a quantifier of a quantifier: put the first part in parentheses")
        return Repeated(part, least, most, is_greedy)

    def _counts(self, token: _Token) -> tuple[int, int | None]:
        if token.kind == "symbol":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token.text]
        inner = token.text[1:-1].replace(" ", "")
        first, comma, last = inner.partition(",")
        if not first and not last:
            raise self._error("a quantifier needs a number: {n}, {n,}, {n,m} or {,m}", token)
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        if max(least, most or 0) > REPEATS_MAX:
            raise self._error(f"more than {REPEATS_MAX} repetitions", token)
        if most is not None and most < least:
            raise self._error(f"at least {least} and at most {most}: swap them", token)
        if most == 0:
            raise self._error("a part that occurs 0 times: leave it out", token)
        return least, most

    def _primary(self) -> Node:
        token = self._take()
        if token.kind == "quoted":
            return Variable(token.text, token.text, token.place)
        if token.kind == "name":
            if token.text.lower() == "permute" and self._is("("):
                return self._permutation(token)
            return Variable(token.text, identity_of(token.text), token.place)
        if token.kind == "open_excluded":
            return self._exclusion(token)
        if token.text == "(":
            return self._group(token)
        if token.text in ("^", "$"):
            return Anchor(token.text == "^", token.place)
        if token.kind == "count" or token.text in "*+?":
            raise self._error("a quantifier without a part before it", token)
        raise self._error(f"unexpected {token.text!r} in the pattern", token)

    def _group(self, opened: _Token) -> Node:
        self._descend(opened)
        if self._is(")"):
            self._take()
            node: Node = Empty()
        else:
            node = self._alternatives()
            self._close(")", opened)
        self._depth -= 1
        return node

    def _exclusion(self, opened: _Token) -> Node:
        self._descend(opened)
        node = Excluded(self._alternatives())
        self._close("-}", opened)
        self._depth -= 1
        return node

    def _permutation(self, keyword: _Token) -> Node:
        opened = self._take()
        self._descend(opened)
        parts = [self._alternatives()]
        while self._is(","):
            self._take()
            parts.append(self._alternatives())
        self._close(")", opened)
        self._depth -= 1
        if len(parts) > PERMUTED_MAX:
            raise self._error(
                f"PERMUTE of {len(parts)} parts has too many orders: at most {PERMUTED_MAX}",
                keyword,
            )
        return parts[0] if len(parts) == 1 else Permutation(tuple(parts))

    def _descend(self, opened: _Token) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} groups within each other", opened)

    def _close(self, symbol: str, opened: _Token) -> None:
        if not self._is(symbol):
            if self._peek.kind == "end":
                raise self._error(f"{opened.text!r} is not closed with {symbol!r}", opened)
            raise self._error(f"expected {symbol!r} before {self._peek.text!r}")
        self._take()
