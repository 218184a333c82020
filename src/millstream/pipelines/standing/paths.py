"""How the candidates of queries are found: pairs of an event and a query that may match it.

    category = 'bike'                     events with this value            join by value
    category = 'bike' AND price < 300     also in the range                 and the order of bounds
    text has 'leaf'                       events that contain the term      join by term
    price < 300                           events in the range               the order of the bounds
    none of these                         all events

A path serves all queries of one shape that use the same condition, and knows which conditions are
true for its candidates. Shapes of few queries share a path, whose candidates are then evaluated
whole. `choose_paths` picks, for each query, the condition with the fewest candidates in a sample.
The choice does not change results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from millstream.pipelines.standing.events import Rows
from millstream.pipelines.standing.kinds import Numbers
from millstream.pipelines.standing.shapes import Pairs, ShapeRows
from millstream.pipelines.standing.templates import RANGES, Leaf
from millstream.pipelines.standing.terms import Postings, expand
from millstream.pipelines.standing.vocabulary import Batch, Vocabulary

PAIRS_MAX = 1_000_000  # candidates that are evaluated at once
SHARED_QUERIES_MAX = 64  # of a shape that shares its paths
# Added to the number of candidates, so that the order is good where a sample has none.
_BIAS = {"=": 0.0, "in": 0.1, "has": 0.2} | dict.fromkeys(RANGES, 1.0)
_NO_ROWS = np.zeros(0, np.int64)


class Ranges(NamedTuple):
    """For events, ranges of `queries`: their candidates."""

    events: Rows
    starts: Rows
    counts: Rows
    queries: Rows

    def pairs(self) -> Iterator[Pairs]:
        """The candidates, about `PAIRS_MAX` at once."""
        ends = np.cumsum(self.counts)
        total = int(ends[-1]) if len(ends) else 0
        cuts = np.unique(np.searchsorted(ends, np.arange(PAIRS_MAX, total, PAIRS_MAX)))
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(ends)], strict=True):
            places, at = expand(self.starts[first:last], self.counts[first:last])
            yield Pairs(self.events[first:last][places], self.queries[at])


class Finder(Protocol):
    """Finds the candidates of its queries."""

    def ranges(self, batch: Batch) -> Ranges: ...


class Path(NamedTuple):
    """A way to candidates; `shape` is their only shape, of which the leaves `known` are true."""

    finder: Finder
    shape: int | None
    known: frozenset[int]


class ByValue(NamedTuple):
    """Queries that need a column to have a value."""

    leaf: Leaf
    values: Numbers
    postings: Postings

    @classmethod
    def of(cls, leaf: Leaf, values: Numbers, queries: Rows) -> ByValue:
        distinct = np.unique(values)
        keys = np.searchsorted(distinct, values).astype(np.int64)
        return cls(leaf, distinct, Postings.of(keys, queries, len(distinct)))

    def ranges(self, batch: Batch) -> Ranges:
        events, keys = _with_value(batch, self.leaf, self.values)
        ends, counts = self.postings.ends[keys], self.postings.counts(keys)
        return Ranges(events, ends, counts, self.postings.values)


class ByValueAndBound(NamedTuple):
    """Queries that need a column to have a value, and another to be in a range. `keys` are those
    of `queries`: number of the value * len(bounds) + number of the bound, in order."""

    leaf: Leaf
    values: Numbers
    range_leaf: Leaf
    bounds: Numbers
    keys: Rows
    queries: Rows

    @classmethod
    def of(
        cls, leaf: Leaf, values: Numbers, range_leaf: Leaf, bounds: Numbers, queries: Rows
    ) -> ByValueAndBound:
        distinct, distinct_bounds = np.unique(values), np.unique(bounds)
        keys = np.searchsorted(distinct, values) * len(distinct_bounds)
        keys = keys + np.searchsorted(distinct_bounds, bounds)
        order = np.argsort(keys, kind="stable")
        return cls(leaf, distinct, range_leaf, distinct_bounds, keys[order], queries[order])

    def ranges(self, batch: Batch) -> Ranges:
        events, at = _with_value(batch, self.leaf, self.values)
        present = batch.events.present(self.range_leaf.column)
        if present is not None:
            has_both = present[events]
            events, at = events[has_both], at[has_both]
        operator = self.range_leaf.operator
        mine = batch.numbers(self.range_leaf)[events]
        cut = at * len(self.bounds) + np.searchsorted(self.bounds, mine, side=_side(operator))
        edge = np.searchsorted(self.keys, cut)
        if operator in (">", ">="):
            starts, ends = np.searchsorted(self.keys, at * len(self.bounds)), edge
        else:
            starts, ends = edge, np.searchsorted(self.keys, (at + 1) * len(self.bounds))
        return Ranges(events, starts, ends - starts, self.queries)


class ByTerm(NamedTuple):
    """Queries that need a text to contain a term."""

    column: str
    postings: Postings

    def ranges(self, batch: Batch) -> Ranges:
        found = batch.found(self.column)
        rows, terms = found.rows, found.terms
        counts = self.postings.counts(terms)
        used = np.flatnonzero(counts)
        starts = self.postings.ends[terms[used]]
        return Ranges(rows[used], starts, counts[used], self.postings.values)


class ByRange(NamedTuple):
    """Queries that need a column to be in a range; bounds in order."""

    leaf: Leaf
    bounds: Numbers
    queries: Rows

    @classmethod
    def of(cls, leaf: Leaf, bounds: Numbers, queries: Rows) -> ByRange:
        order = np.argsort(bounds, kind="stable")
        return cls(leaf, bounds[order], queries[order])

    def ranges(self, batch: Batch) -> Ranges:
        mine = batch.numbers(self.leaf)
        at = np.searchsorted(self.bounds, mine, side=_side(self.leaf.operator)).astype(np.int64)
        if self.leaf.operator in (">", ">="):
            starts, counts = np.zeros(len(at), np.int64), at
        else:
            starts, counts = at, len(self.bounds) - at
        present = batch.events.present(self.leaf.column)
        events = np.flatnonzero(counts if present is None else np.where(present, counts, 0))
        return Ranges(events, starts[events], counts[events], self.queries)


class ByAll(NamedTuple):
    """Queries for which every event is a candidate."""

    queries: Rows

    def ranges(self, batch: Batch) -> Ranges:
        events = np.arange(batch.events.count)
        counts = np.full(len(events), len(self.queries))
        return Ranges(events, np.zeros(len(events), np.int64), counts, self.queries)


def _with_value(batch: Batch, leaf: Leaf, values: Numbers) -> tuple[Rows, Rows]:
    """The events whose column has one of these values, and the numbers of the values."""
    mine = batch.numbers(leaf)
    at = np.minimum(np.searchsorted(values, mine), len(values) - 1)
    is_known = values[at] == mine
    present = batch.events.present(leaf.column)
    events = np.flatnonzero(is_known if present is None else is_known & present)
    return events, at[events]


def _side(operator: str) -> Any:
    """Where a value lies among equal bounds, so that the bounds on one side include it."""
    return "left" if operator in (">", "<=") else "right"


class _Key(NamedTuple):
    """What queries of one path have in common."""

    leaf: Leaf
    range_leaf: Leaf | None
    shape: int | None
    known: frozenset[int]


class _Entries(NamedTuple):
    """Queries with the value, and perhaps the bound, by which they are found."""

    values: Numbers
    bounds: Numbers
    queries: Rows


def choose_paths(
    shapes: Sequence[ShapeRows], vocabulary: Vocabulary, sample: Batch
) -> tuple[list[Path], Rows]:
    """The paths to all queries, and the queries that are found by several conditions, so that
    they can be candidates of an event more than once."""
    costs = _Costs(sample)
    chosen: dict[_Key, list[_Entries]] = {}
    scanned, repeated = [_NO_ROWS], [_NO_ROWS]
    for number, rows in enumerate(shapes):
        every = np.arange(rows.count)
        options = [sorted(it) for it in rows.shape.options]
        if not options:
            scanned.append(every + rows.first)
            continue
        by_option = [sum(costs.of(rows, it) for it in option) for option in options]
        best = np.argmin(np.stack(by_option), axis=0)
        for place, option in enumerate(options):
            mine = every[best == place]
            if len(option) > 1:
                repeated.append(mine + rows.first)
            for leaf in option if len(mine) else ():
                key, entries = _entries(rows, number, leaf, mine, is_alone=len(option) == 1)
                chosen.setdefault(key, []).append(entries)
    paths = [_path(key, parts, vocabulary) for key, parts in chosen.items()]
    if len(queries := np.concatenate(scanned)):
        paths.append(Path(ByAll(queries), None, frozenset()))
    return paths, np.concatenate(repeated)


def _entries(
    rows: ShapeRows, shape: int, number: int, mine: Rows, *, is_alone: bool
) -> tuple[_Key, _Entries]:
    """What the queries `mine` of a shape add to a path by one of their leaves."""
    leaf, values = rows.shape.leaves[number], rows.values[number]
    ranged = _range_of(rows) if is_alone and leaf.operator in ("=", "in") else None
    if leaf.operator == "in":
        queries, listed = values.entries()
        is_mine = np.isin(queries, mine)
        mine, values = queries[is_mine], listed[is_mine]
        leaf = leaf._replace(operator="=")
    else:
        values = values[mine]
    bounds = _NO_ROWS if ranged is None else rows.values[ranged][mine]
    known = frozenset((number,) if ranged is None else (number, ranged))
    is_own = rows.count > SHARED_QUERIES_MAX
    key = _Key(
        leaf,
        None if ranged is None else rows.shape.leaves[ranged],
        shape if is_own else None,
        known if is_own and is_alone else frozenset(),
    )
    return key, _Entries(values, bounds, mine + rows.first)


def _range_of(rows: ShapeRows) -> int | None:
    """A leaf with a range that must be true."""
    leaves = [it for it in rows.conjuncts if isinstance(it, int)]
    return next((it for it in leaves if rows.shape.leaves[it].operator in RANGES), None)


def _path(key: _Key, parts: Sequence[_Entries], vocabulary: Vocabulary) -> Path:
    values, bounds, queries = (np.concatenate(it) for it in zip(*parts, strict=True))
    leaf = key.leaf
    finder: Finder
    if leaf.operator == "has":
        table = vocabulary.terms[leaf.column]
        finder = ByTerm(leaf.column, Postings.of(values, queries, len(table)))
    elif leaf.operator != "=":
        finder = ByRange.of(leaf, values, queries)
    elif key.range_leaf is None:
        finder = ByValue.of(leaf, values, queries)
    else:
        finder = ByValueAndBound.of(leaf, values, key.range_leaf, bounds, queries)
    return Path(finder, key.shape, key.known)


class _Costs:
    """How many events of a sample are candidates by a condition, for each query of a shape."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._sorted: dict[str, Numbers] = {}
        self._terms: dict[str, Rows] = {}

    def of(self, rows: ShapeRows, number: int) -> Numbers:
        leaf, values = rows.shape.leaves[number], rows.values[number]
        counts: Numbers = self._counts(leaf, values, rows.count)
        return counts + _BIAS[leaf.operator]

    def _counts(self, leaf: Leaf, values: Any, query_count: int) -> Any:
        if leaf.operator == "has":
            return self._term_counts(leaf.column)[values]
        if leaf.operator == "in":
            queries, listed = values.entries()
            return np.bincount(queries, self._equal(leaf, listed), query_count)
        if leaf.operator == "=":
            return self._equal(leaf, values)
        side: Any = "left" if leaf.operator in ("<", ">=") else "right"
        mine = self._values(leaf)
        below = np.searchsorted(mine, values, side=side)
        return below if leaf.operator in ("<", "<=") else len(mine) - below

    def _values(self, leaf: Leaf) -> Numbers:
        if leaf.column not in self._sorted:
            numbers, present = self._batch.numbers(leaf), self._batch.events.present(leaf.column)
            self._sorted[leaf.column] = np.sort(numbers if present is None else numbers[present])
        return self._sorted[leaf.column]

    def _equal(self, leaf: Leaf, values: Numbers) -> Numbers:
        mine = self._values(leaf)
        ends = np.searchsorted(mine, values, side="right")
        counts: Numbers = ends - np.searchsorted(mine, values, side="left")
        return counts

    def _term_counts(self, column: str) -> Rows:
        if column not in self._terms:
            found = self._batch.found(column)
            self._terms[column] = np.bincount(found.terms, minlength=found.term_count)
        return self._terms[column]
