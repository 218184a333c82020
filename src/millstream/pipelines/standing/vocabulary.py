"""The values of a segment's queries as numbers, and a batch of events in these numbers.

Texts that queries compare columns with get ranks, and the terms that they look for get numbers. So
conditions on texts are evaluated like those on numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.standing.events import Events, Rows
from millstream.pipelines.standing.kinds import Numbers
from millstream.pipelines.standing.templates import RANGES, Leaf, Query, Term
from millstream.pipelines.standing.terms import Found, TermTable


class TextValues:
    """The values that queries compare a text column with. Their ranks are odd; the rank of any
    other text is even and lies between, so that ranks compare like the texts."""

    def __init__(self, values: set[str], *, is_ordered: bool) -> None:
        self._sorted = sorted(it.encode() for it in values)
        self._values = pa.array([it.decode() for it in self._sorted], pa.large_string())
        self._ranks = {it: 2 * place + 1 for place, it in enumerate(self._sorted)}
        self._is_ordered = is_ordered  # whether a query uses the order

    def rank(self, value: str) -> int:
        return self._ranks[value.encode()]

    def ranks(self, events: Events, column: str) -> Rows:
        indices, distinct = events.distinct(column)
        found = pc.fill_null(pc.index_in(distinct, value_set=self._values), -1)
        ranks: Rows = 2 * found.to_numpy(zero_copy_only=False).astype(np.int64) + 1
        unknown = np.flatnonzero(ranks < 0)
        ranks[unknown] = -2
        if self._is_ordered:
            texts = distinct.take(pa.array(unknown)).to_pylist()
            ranks[unknown] = [2 * bisect_left(self._sorted, it.encode()) for it in texts]
        return np.append(ranks, -2)[indices]


class Vocabulary:
    """The texts and terms of queries, by column."""

    def __init__(self, queries: Sequence[Query]) -> None:
        texts: dict[str, set[str]] = {}
        terms: dict[str, list[Term]] = {}
        ordered: set[str] = set()
        for query in queries:
            for leaf, parameter in zip(query.shape.leaves, query.parameters, strict=True):
                if isinstance(parameter, Term):
                    terms.setdefault(leaf.column, []).append(parameter)
                elif leaf.kind == "text" and parameter is not None:
                    values = parameter if isinstance(parameter, tuple) else (parameter,)
                    texts.setdefault(leaf.column, set()).update(map(str, values))
                    if leaf.operator in RANGES:
                        ordered.add(leaf.column)
        self.texts = {
            column: TextValues(values, is_ordered=column in ordered)
            for column, values in texts.items()
        }
        self.terms = {column: TermTable(found) for column, found in terms.items()}


class Batch:
    """A batch of events in the numbers of a vocabulary."""

    def __init__(self, events: Events, vocabulary: Vocabulary) -> None:
        self.events = events
        self._vocabulary = vocabulary
        self._ranks: dict[str, Rows] = {}
        self._found: dict[str, Found] = {}

    def numbers(self, leaf: Leaf) -> Numbers:
        """The values of a leaf's column, which compare like the leaf's values."""
        if leaf.kind != "text":
            return self.events.numbers(leaf.column)
        if leaf.column not in self._ranks:
            values = self._vocabulary.texts[leaf.column]
            self._ranks[leaf.column] = values.ranks(self.events, leaf.column)
        return self._ranks[leaf.column]

    def found(self, column: str) -> Found:
        """The terms in a text column."""
        if column not in self._found:
            self._found[column] = self._vocabulary.terms[column].find(self.events.words(column))
        return self._found[column]
