"""A segment of the index: a number of queries, compiled so that a batch of events is matched with
all of them by a few joins.

Queries are grouped by shape; the values of a shape are columns, with one row for each query. For
each query one option of its shape is chosen, by which candidates are found:

    category = 'bike'       events with this value                    join by value
    text has 'leaf'         events that contain the term              join by term
    price < 300             events in the range                       by the order of the bounds
    none                    all events

The option is chosen that has the fewest candidates in the batch that was matched first. The choice
does not change results: the whole query is evaluated for all candidates, shape by shape.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.standing.events import Events, Flags, Rows
from millstream.pipelines.standing.kinds import Numbers
from millstream.pipelines.standing.templates import RANGES, Group, Leaf, Query, Shape, Term, Tree
from millstream.pipelines.standing.terms import Found, Postings, TermTable, expand

PAIRS_MAX = 2_000_000  # candidates that are evaluated at once
WHYS_MAX = 200_000  # explanations that are kept
SAMPLE_ROWS = 10_000  # of a batch, to choose how candidates are found
# Added to the number of candidates, so that the order is good where a sample has none.
_BIAS = {"=": 0.0, "in": 0.1, "has": 0.2} | dict.fromkeys(RANGES, 1.0)
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NO_ROWS = np.zeros(0, np.int64)


class Hits(NamedTuple):
    """Events and the queries that match them; both are numbers of rows."""

    events: Rows
    queries: Rows


class TextValues:
    """The values that queries compare a text column with. Their ranks are odd; the rank of any
    other text is even and lies between, so that ranks compare like the texts."""

    def __init__(self, values: set[str]) -> None:
        self._sorted = sorted(it.encode() for it in values)
        self._values = pa.array([it.decode() for it in self._sorted], pa.large_string())
        self._ranks = {it: 2 * place + 1 for place, it in enumerate(self._sorted)}
        self.is_ordered = False  # whether a query uses the order

    def rank(self, value: str) -> int:
        return self._ranks[value.encode()]

    def ranks(self, events: Events, column: str) -> Rows:
        indices, distinct = events.distinct(column)
        found = pc.fill_null(pc.index_in(distinct, value_set=self._values), -1)
        ranks: Rows = 2 * found.to_numpy(zero_copy_only=False).astype(np.int64) + 1
        unknown = np.flatnonzero(ranks < 0)
        ranks[unknown] = -2
        if self.is_ordered:
            texts = distinct.take(pa.array(unknown)).to_pylist()
            ranks[unknown] = [2 * bisect_left(self._sorted, it.encode()) for it in texts]
        return np.append(ranks, -2)[indices]


class _Batch:
    """A batch of events in the terms of a segment."""

    def __init__(self, events: Events, segment: Segment) -> None:
        self.events = events
        self._segment = segment
        self._numbers: dict[str, Numbers] = {}
        self._found: dict[str, Found] = {}

    def numbers(self, leaf: Leaf) -> Numbers:
        if leaf.kind != "text":
            return self.events.numbers(leaf.column)
        if leaf.column not in self._numbers:
            values = self._segment.texts[leaf.column]
            self._numbers[leaf.column] = values.ranks(self.events, leaf.column)
        return self._numbers[leaf.column]

    def found(self, column: str) -> Found:
        if column not in self._found:
            self._found[column] = self._segment.terms[column].find(self.events.words(column))
        return self._found[column]


@dataclass(frozen=True)
class _Lists:
    """The lists of IN: distinct values in order, and sorted numbers query * len(values) + value."""

    values: Numbers
    keys: Rows

    @classmethod
    def of(cls, lists: Sequence[Sequence[Any]]) -> _Lists:
        sizes = np.array([len(it) for it in lists], np.int64)
        flat = np.array([value for it in lists for value in it])
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


class _ShapeRows:
    """The queries of one shape; `first` is the row of the first one."""

    def __init__(self, segment: Segment, shape: Shape, first: int, queries: Sequence[Query]):
        self.shape = shape
        self.first = first
        self.count = len(queries)
        self.values = [
            _values(segment, leaf, [it.parameters[number] for it in queries])
            for number, leaf in enumerate(shape.leaves)
        ]

    def matching(self, batch: _Batch, pairs: Hits) -> Hits:
        """The candidates that match."""
        events, queries = pairs.events, pairs.queries - self.first
        tree = self.shape.tree
        is_all = isinstance(tree, Group) and tree.needs == "all"
        parts: tuple[Tree, ...] = tree.children if is_all else (tree,)  # type: ignore[union-attr]
        for part in parts:
            is_true = self._truth(part, batch, events, queries)
            events, queries = events[is_true], queries[is_true]
        return Hits(events, queries + self.first)

    def true_leaves(self, batch: _Batch, hits: Hits) -> npt.NDArray[np.int64]:
        """For each hit a bit for each leaf that makes it one."""
        return self._mask(self.shape.tree, batch, hits.events, hits.queries - self.first)

    def _mask(self, tree: Tree, batch: _Batch, events: Rows, queries: Rows) -> Rows:
        if isinstance(tree, int):
            bit: Rows = self._leaf(tree, batch, events, queries).astype(np.int64) << tree
            return bit
        masks = [self._mask(it, batch, events, queries) for it in tree.children]
        union: Rows = np.bitwise_or.reduce(masks)
        if tree.needs == "any":
            return union
        zero = np.int64(0)
        return np.where(np.logical_and.reduce([it != 0 for it in masks]), union, zero)

    def _truth(self, tree: Tree, batch: _Batch, events: Rows, queries: Rows) -> Flags:
        if isinstance(tree, int):
            return self._leaf(tree, batch, events, queries)
        found = [self._truth(it, batch, events, queries) for it in tree.children]
        join = np.logical_and if tree.needs == "all" else np.logical_or
        is_true: Flags = join.reduce(found)
        return is_true

    def _leaf(self, number: int, batch: _Batch, events: Rows, queries: Rows) -> Flags:
        """Whether the condition is true, for pairs of an event and a query."""
        leaf, values = self.shape.leaves[number], self.values[number]
        present = batch.events.present(leaf.column)
        is_present: Flags = np.ones(len(events), np.bool_) if present is None else present[events]
        if leaf.operator in ("null", "not null"):
            return is_present if leaf.operator == "not null" else ~is_present
        if leaf.operator in ("has", "lacks"):
            has: Flags = batch.found(leaf.column).contain(events, values[queries])
            return has if leaf.operator == "has" else ~has & is_present
        mine = batch.numbers(leaf)[events]
        if leaf.operator in ("in", "not in"):
            is_in: Flags = values.contain(queries, mine)
            return (is_in if leaf.operator == "in" else ~is_in) & is_present
        is_true: Flags = _COMPARE[leaf.operator](mine, values[queries])
        return is_true & is_present


def _values(segment: Segment, leaf: Leaf, parameters: Sequence[Any]) -> Any:
    """The values of a condition for all queries of a shape."""
    if leaf.operator in ("null", "not null"):
        return None
    if leaf.operator in ("has", "lacks"):
        table = segment.terms[leaf.column]
        return np.array([table.number(it) for it in parameters], np.int64)
    is_list = leaf.operator in ("in", "not in")
    if leaf.kind == "text":
        texts = segment.texts[leaf.column]
        parameters = [
            tuple(map(texts.rank, it)) if is_list else texts.rank(it) for it in parameters
        ]
    if is_list:
        return _Lists.of(parameters)
    return np.array(parameters, np.float64 if leaf.kind == "float" else np.int64)


class _ByValue(NamedTuple):
    """Candidates of queries that need a column to have a value."""

    leaf: Leaf
    values: Numbers
    postings: Postings

    def candidates(self, batch: _Batch) -> tuple[Rows, Rows, Rows, Rows]:
        mine = batch.numbers(self.leaf)
        at = np.minimum(np.searchsorted(self.values, mine), len(self.values) - 1)
        is_known = self.values[at] == mine
        present = batch.events.present(self.leaf.column)
        events = np.flatnonzero(is_known if present is None else is_known & present)
        keys = at[events]
        return events, self.postings.ends[keys], self.postings.counts(keys), self.postings.values


class _ByTerm(NamedTuple):
    """Candidates of queries that need a text to contain a term."""

    column: str
    postings: Postings

    def candidates(self, batch: _Batch) -> tuple[Rows, Rows, Rows, Rows]:
        found = batch.found(self.column)
        terms = found.terms
        counts = self.postings.counts(terms)
        used = np.flatnonzero(counts)
        starts = self.postings.ends[terms[used]]
        return found.rows[used], starts, counts[used], self.postings.values


class _ByRange(NamedTuple):
    """Candidates of queries that need a column to be in a range; bounds in order."""

    leaf: Leaf
    bounds: Numbers
    queries: Rows

    def candidates(self, batch: _Batch) -> tuple[Rows, Rows, Rows, Rows]:
        mine = batch.numbers(self.leaf)
        side: Any = "left" if self.leaf.operator in (">", "<=") else "right"
        at = np.searchsorted(self.bounds, mine, side=side).astype(np.int64)
        if self.leaf.operator in (">", ">="):
            starts, counts = np.zeros(len(at), np.int64), at
        else:
            starts, counts = at, len(self.bounds) - at
        present = batch.events.present(self.leaf.column)
        events = np.flatnonzero(counts if present is None else np.where(present, counts, 0))
        return events, starts[events], counts[events], self.queries


class _ByAll(NamedTuple):
    """Queries for which every event is a candidate."""

    queries: Rows

    def candidates(self, batch: _Batch) -> tuple[Rows, Rows, Rows, Rows]:
        events = np.arange(batch.events.count)
        counts = np.full(len(events), len(self.queries))
        return events, np.zeros(len(events), np.int64), counts, self.queries


class Segment:
    """Compiled queries. `order` has, for each row of the segment, the index of its query."""

    def __init__(self, queries: Sequence[Query]) -> None:
        by_shape: dict[Shape, list[int]] = {}
        for index, query in enumerate(queries):
            by_shape.setdefault(query.shape, []).append(index)
        self.order = np.array([it for rows in by_shape.values() for it in rows], np.int64)
        self.texts: dict[str, TextValues] = {}
        self.terms: dict[str, TermTable] = {}
        self._collect_values(queries)
        self._shapes: list[_ShapeRows] = []
        for shape, rows in by_shape.items():
            first = sum(it.count for it in self._shapes)
            self._shapes.append(_ShapeRows(self, shape, first, [queries[it] for it in rows]))
        self._firsts = np.array([it.first for it in self._shapes], np.int64)
        self._queries = [queries[it] for it in self.order]
        self._paths: list[_ByValue | _ByTerm | _ByRange | _ByAll] = []
        self._is_repeated = np.zeros(len(queries), np.bool_)  # found by several conditions
        self._sampled = 0  # the rows of the batch by which they were chosen
        self.candidate_count = 0  # in the last batch
        self._whys: dict[tuple[int, int], list[str]] = {}

    def __len__(self) -> int:
        return len(self._queries)

    def _collect_values(self, queries: Sequence[Query]) -> None:
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
        self.texts = {column: TextValues(values) for column, values in texts.items()}
        for column in ordered:
            self.texts[column].is_ordered = True
        self.terms = {column: TermTable(found) for column, found in terms.items()}

    def match(self, events: Events) -> tuple[Hits, list[list[str]], Rows]:
        """The hits in any order; and why: lists of conditions, and for each hit the index of its
        list."""
        if events.count > 4 * self._sampled and self._sampled < SAMPLE_ROWS:
            self._choose(events)
        batch = _Batch(events, self)
        self.candidate_count = 0
        hits, indices = [], []
        known: dict[tuple[int, int], int] = {}
        for pairs in self._candidates(batch):
            self.candidate_count += len(pairs.events)
            for rows, part in self._by_shape(pairs):
                found = rows.matching(batch, part)
                if not len(found.events):
                    continue
                hits.append(found)
                indices.append(self._explain(rows, batch, found, known))
        if not hits:
            return Hits(_NO_ROWS, _NO_ROWS), [], _NO_ROWS
        all_hits = Hits(
            np.concatenate([it.events for it in hits]), np.concatenate([it.queries for it in hits])
        )
        return all_hits, [self._why(*it) for it in known], np.concatenate(indices)

    def _explain(
        self, rows: _ShapeRows, batch: _Batch, hits: Hits, known: dict[tuple[int, int], int]
    ) -> Rows:
        """For each hit the number of its pair of query and true conditions, in `known`."""
        if rows.shape.is_conjunction:
            mask = (1 << len(rows.shape.leaves)) - 1
            numbers = np.full(rows.count, -1, np.int64)
            local = hits.queries - rows.first
            numbers[local] = 0
            for it in np.flatnonzero(numbers == 0).tolist():
                numbers[it] = known.setdefault((it + rows.first, mask), len(known))
            return numbers[local]
        masks = rows.true_leaves(batch, hits)
        pairs = zip(hits.queries.tolist(), masks.tolist(), strict=True)
        return np.array([known.setdefault(it, len(known)) for it in pairs], np.int64)

    def _why(self, query: int, mask: int) -> list[str]:
        if (query, mask) not in self._whys:
            if len(self._whys) >= WHYS_MAX:
                self._whys.clear()
            labels = self._queries[query].labels()
            chosen = [it for number, it in enumerate(labels) if mask >> number & 1]
            self._whys[query, mask] = list(dict.fromkeys(chosen))
        return self._whys[query, mask]

    def _candidates(self, batch: _Batch) -> Iterator[Hits]:
        """Pairs of events and queries, at most about `PAIRS_MAX` at once. A query that is found by
        several conditions is a candidate of an event once."""
        repeated = [_NO_ROWS]
        for pairs in self._found(batch):
            is_repeated = self._is_repeated[pairs.queries]
            if is_repeated.any():
                keys = pairs.events[is_repeated] * len(self) + pairs.queries[is_repeated]
                repeated.append(keys)
                pairs = Hits(pairs.events[~is_repeated], pairs.queries[~is_repeated])
            yield pairs
        keys = np.sort(np.concatenate(repeated))
        keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
        for start in range(0, len(keys), PAIRS_MAX):
            part = keys[start : start + PAIRS_MAX]
            yield Hits(part // len(self), part % len(self))

    def _found(self, batch: _Batch) -> Iterator[Hits]:
        for path in self._paths:
            events, starts, counts, queries = path.candidates(batch)
            ends = np.cumsum(counts)
            cuts = np.searchsorted(
                ends, np.arange(PAIRS_MAX, ends[-1] if len(ends) else 0, PAIRS_MAX)
            )
            for chunk in np.split(np.arange(len(events)), np.unique(cuts)):
                places, at = expand(starts[chunk], counts[chunk])
                yield Hits(events[chunk][places], queries[at])

    def _by_shape(self, pairs: Hits) -> list[tuple[_ShapeRows, Hits]]:
        if not len(pairs.events):
            return []
        if len(self._shapes) == 1:
            return [(self._shapes[0], pairs)]
        shapes = np.searchsorted(self._firsts, pairs.queries, side="right") - 1
        small = shapes.astype(np.uint16) if len(self._shapes) < 2**16 else shapes
        order = np.argsort(small, kind="stable")
        shapes = shapes[order]
        used = np.flatnonzero(np.append(True, shapes[1:] != shapes[:-1]))
        ends = np.append(used[1:], len(shapes))
        return [
            (
                self._shapes[shapes[start]],
                Hits(pairs.events[order[start:end]], pairs.queries[order[start:end]]),
            )
            for start, end in zip(used.tolist(), ends.tolist(), strict=True)
        ]

    def _choose(self, events: Events) -> None:
        """Choose how the candidates of each query are found, by the events of this batch."""
        self._sampled = min(events.count, SAMPLE_ROWS)
        sample = Events(events.batch.slice(0, SAMPLE_ROWS), events.kinds)
        costs = _Costs(_Batch(sample, self))
        chosen: dict[tuple[Any, ...], list[tuple[Numbers, Rows]]] = {}
        scanned = [_NO_ROWS]
        self._is_repeated[:] = False
        for rows in self._shapes:
            every = np.arange(rows.count)
            options = [sorted(it) for it in rows.shape.options]
            if not options:
                scanned.append(every + rows.first)
                continue
            by_option = [sum(costs.of(rows, it) for it in option) for option in options]
            best = np.argmin(np.stack(by_option), axis=0)
            for number, option in enumerate(options):
                mine = every[best == number]
                if len(option) > 1:
                    self._is_repeated[mine + rows.first] = True
                for leaf in option:
                    key, values, queries = _entries(rows, leaf, mine)
                    chosen.setdefault(key, []).append((values, queries + rows.first))
        self._paths = [
            _path(
                key,
                np.concatenate([it for it, _ in parts]),
                np.concatenate([it for _, it in parts]),
                self,
            )
            for key, parts in chosen.items()
            if sum(len(it) for _, it in parts)
        ]
        if len(queries := np.concatenate(scanned)):
            self._paths.append(_ByAll(queries))


class _Costs:
    """How many events of a sample are candidates by a condition, for each query of a shape."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._sorted: dict[str, Numbers] = {}
        self._terms: dict[str, Rows] = {}

    def of(self, rows: _ShapeRows, number: int) -> Numbers:
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


def _entries(rows: _ShapeRows, number: int, mine: Rows) -> tuple[tuple[Any, ...], Numbers, Rows]:
    """The key of a path, and the values and queries that a condition adds to it."""
    leaf, values = rows.shape.leaves[number], rows.values[number]
    if leaf.operator == "has":
        return ("has", leaf.column), values[mine], mine
    if leaf.operator == "in":
        queries, listed = values.entries()
        is_mine = np.isin(queries, mine)
        return ("=", leaf._replace(operator="=")), listed[is_mine], queries[is_mine]
    return (leaf.operator, leaf), values[mine], mine


def _path(
    key: tuple[Any, ...], values: Numbers, queries: Rows, segment: Segment
) -> _ByValue | _ByTerm | _ByRange:
    operator, what = key
    if operator == "has":
        return _ByTerm(what, Postings.of(values, queries, len(segment.terms[what])))
    if operator == "=":
        distinct = np.unique(values)
        keys = np.searchsorted(distinct, values).astype(np.int64)
        return _ByValue(what, distinct, Postings.of(keys, queries, len(distinct)))
    order = np.argsort(values, kind="stable")
    return _ByRange(what, values[order], queries[order])
