"""A query on one event, by the definition of the language: three truth values, no index.

`truth` evaluates the tree as it was written; True, False, or None for unknown. It is what the
index (segment.py) is tested against, and what explains the result for one event: `explain` has the
truth of each condition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from millstream.pipelines.standing.fields import value_at
from millstream.pipelines.standing.kinds import Decimals, Kind, value_of
from millstream.pipelines.standing.lexing import Token, tokens_of
from millstream.pipelines.standing.syntax import (
    Both,
    Compare,
    Condition,
    Either,
    InList,
    IsNull,
    IsTrue,
    Node,
    Not,
    Term,
)
from millstream.pipelines.standing.templates import Query
from millstream.pipelines.standing.words import words_of

Truth: TypeAlias = bool | None
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Explained(NamedTuple):
    """A condition of a query, as written, and its truth for an event."""

    condition: str
    truth: Truth


def truth(query: Query, event: Mapping[str, Any]) -> Truth:
    """Whether the query is true for the event, a value by column."""
    return _Evaluation(query, event).of(query.template.tree)


def explain(query: Query, event: Mapping[str, Any]) -> list[Explained]:
    """The truth of each condition, in the order of the query."""
    evaluation = _Evaluation(query, event)
    return [
        Explained(evaluation.text_of(it), evaluation.of(it))
        for it in _conditions(query.template.tree)
    ]


def _conditions(node: Node) -> list[Condition]:
    if isinstance(node, Not):
        return _conditions(node.child)
    if isinstance(node, Both | Either):
        return [it for child in node.children for it in _conditions(child)]
    return [node]


class _Evaluation:
    """The tokens of a query, for which its tree has the indexes, and an event."""

    def __init__(self, query: Query, event: Mapping[str, Any]) -> None:
        self._text = query.text
        self._tokens: Sequence[Token] = tokens_of(query.text)
        self._event = event

    def of(self, node: Node) -> Truth:
        if isinstance(node, Not):
            inner = self.of(node.child)
            return None if inner is None else not inner
        if isinstance(node, Both):
            found = [self.of(it) for it in node.children]
            return False if False in found else None if None in found else True
        if isinstance(node, Either):
            found = [self.of(it) for it in node.children]
            return True if True in found else None if None in found else False
        value = value_at(self._event, node.column)
        if isinstance(node, IsNull):
            return value is None
        return None if value is None else self._condition(node, value)

    def text_of(self, node: Condition) -> str:
        first, last = (self._tokens[it] for it in node.tokens)
        written = self._text[first.start : last.end]
        return f"{node.column}: {written}" if isinstance(node, Term) else written

    def _condition(self, node: Condition, value: Any) -> bool:
        if isinstance(node, IsTrue):
            return bool(value)
        if isinstance(node, Term):
            return self._has(node, words_of(value))
        if isinstance(node, InList):
            mine = comparable(node.kind, value)
            return any(mine == self._literal(node.kind, "in", it) for it in node.literals)
        assert isinstance(node, Compare)
        mine, other = (
            comparable(node.kind, value),
            self._literal(node.kind, node.operator, node.literal),
        )
        holds: Mapping[str, bool] = {
            "=": mine == other,
            "<>": mine != other,
            "<": mine < other,
            "<=": mine <= other,
            ">": mine > other,
            ">=": mine >= other,
        }
        return holds[node.operator]

    def _literal(self, kind: Kind, operator: str, index: int) -> Any:
        token = self._tokens[index]
        if kind == "integer" or isinstance(kind, Decimals):
            return Decimal(str(token.value))  # exact, and not rounded as in the index
        found = value_of(kind, operator, str(token.value), token.kind)
        return found.encode() if isinstance(found, str) else found

    def _has(self, node: Term, words: list[str]) -> bool:
        wanted = self._tokens[node.literal].value
        if node.kind == "word":
            return wanted in words
        if node.kind == "prefix":
            return any(it.startswith(str(wanted)) for it in words)
        phrase = list(wanted)
        return any(words[at : at + len(phrase)] == phrase for at in range(len(words)))


def comparable(kind: Kind, value: Any) -> Any:
    """A value of an event as literals are compared with it."""
    if kind == "text":
        return str(value).encode()  # in the order of bytes, as Spark
    if isinstance(kind, Decimals):
        return Decimal(value)
    if kind == "float":
        return math.inf if math.isnan(value) else float(value)
    if kind == "time" and isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if kind == "date" and isinstance(value, date):
        return (value - _EPOCH.date()).days
    return int(value)
