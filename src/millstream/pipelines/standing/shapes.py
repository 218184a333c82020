"""The queries of one shape: their values as columns, and their conditions on pairs of an event and
a query."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.pipelines.standing.events import Flags, Rows
from millstream.pipelines.standing.kinds import Numbers, number_type
from millstream.pipelines.standing.templates import Group, Leaf, Query, Shape, Tree
from millstream.pipelines.standing.vocabulary import Batch, Vocabulary

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Pairs(NamedTuple):
    """Events and queries beside each other; both are numbers of rows."""

    events: Rows
    queries: Rows

    def where(self, flags: Flags) -> Pairs:
        return Pairs(self.events[flags], self.queries[flags])


@dataclass(frozen=True)
class Lists:
    """The lists of IN: distinct values in order, and sorted numbers query * len(values) + value."""

    values: Numbers
    keys: Rows

    @classmethod
    def of(cls, lists: Sequence[Sequence[Any]], kind: npt.DTypeLike = np.int64) -> Lists:
        sizes = np.array([len(it) for it in lists], np.int64)
        flat = np.array([value for it in lists for value in it], kind)
        values = np.unique(flat)
        places = np.searchsorted(values, flat)
        return cls(values, np.sort(np.repeat(np.arange(len(lists)), sizes) * len(values) + places))

    def contain(self, queries: Rows, wanted: Numbers) -> Flags:
        at = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        keys = queries * len(self.values) + at
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: Flags = (self.values[at] == wanted) & (self.keys[places] == keys)
        return found

    def entries(self) -> tuple[Rows, Numbers]:
        """All queries and values."""
        return self.keys // len(self.values), self.values[self.keys % len(self.values)]


class ShapeRows:
    """The queries of one shape; `first` is the row of the first one in the segment."""

    def __init__(
        self, vocabulary: Vocabulary, shape: Shape, first: int, queries: Sequence[Query]
    ) -> None:
        self.shape = shape
        self.first = first
        self.count = len(queries)
        self.values = [
            _values(vocabulary, leaf, [it.parameters[number] for it in queries])
            for number, leaf in enumerate(shape.leaves)
        ]
        tree = shape.tree
        is_all = isinstance(tree, Group) and tree.needs == "all"
        self.conjuncts: tuple[Tree, ...] = tree.children if is_all else (tree,)  # type: ignore[union-attr]

    def matching(self, batch: Batch, pairs: Pairs, known: frozenset[int]) -> Pairs:
        """The pairs that match. The leaves `known` are true for all of them."""
        for part in self.conjuncts:
            if part not in known:
                pairs = pairs.where(self._truth(part, batch, pairs))
        return pairs

    def true_leaves(self, batch: Batch, hits: Pairs) -> Rows:
        """For each hit a bit for each leaf that makes it one."""
        return self._mask(self.shape.tree, batch, hits)

    def _mask(self, tree: Tree, batch: Batch, pairs: Pairs) -> Rows:
        if isinstance(tree, int):
            bit: Rows = self._leaf(tree, batch, pairs).astype(np.int64) << tree
            return bit
        masks = [self._mask(it, batch, pairs) for it in tree.children]
        union: Rows = np.bitwise_or.reduce(masks)
        if tree.needs == "any":
            return union
        zero = np.int64(0)
        return np.where(np.logical_and.reduce([it != 0 for it in masks]), union, zero)

    def _truth(self, tree: Tree, batch: Batch, pairs: Pairs) -> Flags:
        if isinstance(tree, int):
            return self._leaf(tree, batch, pairs)
        found = [self._truth(it, batch, pairs) for it in tree.children]
        join = np.logical_and if tree.needs == "all" else np.logical_or
        is_true: Flags = join.reduce(found)
        return is_true

    def _leaf(self, number: int, batch: Batch, pairs: Pairs) -> Flags:
        """Whether the condition is true."""
        leaf = self.shape.leaves[number]
        present = batch.events.present(leaf.column)
        if leaf.operator in ("null", "not null"):
            count = len(pairs.events)
            has = np.ones(count, np.bool_) if present is None else present[pairs.events]
            return has if leaf.operator == "not null" else ~has
        is_true = self._compared(leaf, self.values[number], batch, pairs)
        return is_true if present is None else is_true & present[pairs.events]

    def _compared(self, leaf: Leaf, values: Any, batch: Batch, pairs: Pairs) -> Flags:
        """Whether the condition is true where the column is not null."""
        queries = pairs.queries - self.first
        if leaf.operator in ("has", "lacks"):
            has: Flags = batch.found(leaf.column).contain(pairs.events, values[queries])
            return has if leaf.operator == "has" else ~has
        mine = batch.numbers(leaf)[pairs.events]
        if leaf.operator in ("in", "not in"):
            is_in: Flags = values.contain(queries, mine)
            return is_in if leaf.operator == "in" else ~is_in
        is_true: Flags = _COMPARE[leaf.operator](mine, values[queries])
        return is_true


def _values(vocabulary: Vocabulary, leaf: Leaf, parameters: Sequence[Any]) -> Any:
    """The values of a condition for all queries of a shape."""
    if leaf.operator in ("null", "not null"):
        return None
    if leaf.operator in ("has", "lacks"):
        table = vocabulary.terms[leaf.column]
        return np.array([table.number(it) for it in parameters], np.int64)
    is_list = leaf.operator in ("in", "not in")
    if leaf.kind == "text":
        texts = vocabulary.texts[leaf.column]
        parameters = [
            tuple(map(texts.rank, it)) if is_list else texts.rank(it) for it in parameters
        ]
    number = number_type(leaf.kind)
    return Lists.of(parameters, number) if is_list else np.array(parameters, number)
