"""A segment of the index: a number of queries, compiled so that a batch of events is matched with
all of them by a few joins.

Queries are grouped by shape; the values of a shape are columns, with one row for each query
(shapes.py). Candidates are found by the conditions that are rare among the events (paths.py), and
then evaluated exactly, shape by shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millstream.pipelines.standing import paths
from millstream.pipelines.standing.events import Events, Rows
from millstream.pipelines.standing.paths import Path, choose_paths
from millstream.pipelines.standing.shapes import Pairs, ShapeRows
from millstream.pipelines.standing.templates import Query, Shape
from millstream.pipelines.standing.vocabulary import Batch, Vocabulary
from millstream.pipelines.standing.whys import SegmentWhys, Whys

SAMPLE_ROWS = 10_000  # of a batch, to choose how candidates are found
_NO_ROWS = np.zeros(0, np.int64)


class Hits(NamedTuple):
    """Events, the queries that match them, and the numbers of the reasons."""

    events: Rows
    queries: Rows
    whys: Rows


class _Candidates(NamedTuple):
    """Pairs to evaluate: of one shape, whose leaves `known` are true, or of any."""

    pairs: Pairs
    shape: int | None
    known: frozenset[int]


class Segment:
    """Compiled queries. `order` has, for each row of the segment, the index of its query."""

    def __init__(self, queries: Sequence[Query], whys: Whys) -> None:
        by_shape: dict[Shape, list[int]] = {}
        for index, query in enumerate(queries):
            by_shape.setdefault(query.shape, []).append(index)
        self.order = np.array([it for rows in by_shape.values() for it in rows], np.int64)
        self._vocabulary = Vocabulary(queries)
        self._shapes: list[ShapeRows] = []
        first = 0
        for shape, rows in by_shape.items():
            mine = [queries[it] for it in rows]
            self._shapes.append(ShapeRows(self._vocabulary, shape, first, mine))
            first += len(rows)
        self._firsts = np.array([it.first for it in self._shapes], np.int64)
        self._whys = SegmentWhys(whys, [queries[it] for it in self.order])
        self._paths: list[Path] = []
        self._is_repeated = np.zeros(len(queries), np.bool_)  # found by several conditions
        self._sampled = 0  # the rows of the batch by which the paths were chosen
        self.candidate_count = 0  # in the last batch

    def match(self, events: Events) -> Hits:
        """The hits in any order."""
        if events.count > 4 * self._sampled and self._sampled < SAMPLE_ROWS:
            self._choose(events)
        self._whys.refresh()
        batch = Batch(events, self._vocabulary)
        self.candidate_count = 0
        found = [Hits(_NO_ROWS, _NO_ROWS, _NO_ROWS)]
        for candidates in self._candidates(batch):
            self.candidate_count += len(candidates.pairs.events)
            for rows, pairs in self._by_shape(candidates):
                hits = rows.matching(batch, pairs, candidates.known)
                if len(hits.events):
                    found.append(Hits(*hits, self._explain(rows, batch, hits)))
        return Hits(*(np.concatenate(it) for it in zip(*found, strict=True)))

    def _explain(self, rows: ShapeRows, batch: Batch, hits: Pairs) -> Rows:
        if rows.shape.is_conjunction:
            return self._whys.of_whole(hits.queries)
        return self._whys.of_masks(hits.queries, rows.true_leaves(batch, hits))

    def _candidates(self, batch: Batch) -> Iterator[_Candidates]:
        """A query that is found by several conditions is a candidate of an event once."""
        repeated = [_NO_ROWS]
        query_count = len(self._is_repeated)
        for path in self._paths:
            for pairs in path.finder.ranges(batch).pairs():
                if not path.known and self._is_repeated[pairs.queries].any():
                    is_repeated = self._is_repeated[pairs.queries]
                    again = pairs.where(is_repeated)
                    repeated.append(again.events * query_count + again.queries)
                    pairs = pairs.where(~is_repeated)
                yield _Candidates(pairs, path.shape, path.known)
        keys = np.sort(np.concatenate(repeated))
        keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
        for start in range(0, len(keys), paths.PAIRS_MAX):
            part = keys[start : start + paths.PAIRS_MAX]
            yield _Candidates(Pairs(part // query_count, part % query_count), None, frozenset())

    def _by_shape(self, candidates: _Candidates) -> list[tuple[ShapeRows, Pairs]]:
        pairs = candidates.pairs
        if not len(pairs.events):
            return []
        if candidates.shape is not None:
            return [(self._shapes[candidates.shape], pairs)]
        shapes = np.searchsorted(self._firsts, pairs.queries, side="right") - 1
        small = shapes.astype(np.uint16) if len(self._shapes) < 2**16 else shapes
        order = np.argsort(small, kind="stable")
        shapes = shapes[order]
        used = np.flatnonzero(np.append(True, shapes[1:] != shapes[:-1]))
        ends = np.append(used[1:], len(shapes))
        return [
            (
                self._shapes[shapes[start]],
                Pairs(pairs.events[order[start:end]], pairs.queries[order[start:end]]),
            )
            for start, end in zip(used.tolist(), ends.tolist(), strict=True)
        ]

    def _choose(self, events: Events) -> None:
        """Choose how the candidates of each query are found, by the events of this batch."""
        self._sampled = min(events.count, SAMPLE_ROWS)
        sample = Events(events.batch.slice(0, SAMPLE_ROWS), events.kinds)
        self._paths, repeated = choose_paths(
            self._shapes, self._vocabulary, Batch(sample, self._vocabulary)
        )
        self._is_repeated[:] = False
        self._is_repeated[repeated] = True
