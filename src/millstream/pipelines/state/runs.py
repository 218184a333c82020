"""A table that is looked up by key, and may be larger than memory: sorted runs of pages.

A run is the rows of a batch, or of several that were merged, in the order of their hashes; its
pages cover ranges of hashes that do not overlap. A lookup reads, of each run, the pages in whose
range a wanted hash lies, and keeps of them the rows that are wanted.

A change is a row that is appended, beside what it replaces: a batch writes no more than what is new
in it. The operator calls `merge` in every batch, and says what is left of rows that meet. Then

    all runs are merged     when the largest has no more rows than all others together. So a table
                            has at most twice the rows that it had after it was last made small
    four of about a size    become one, so that there are few runs

either way by reading all of them side by side, one page of each, in the order of hashes: a merge
holds a page of each run in memory, whatever their size, and writes each page as it is full.
A row is rewritten some times in its life, each time with a table twice as large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import HASH, distinct
from millstream.pipelines.state.tables import (
    MERGE_COUNT,
    PageInfo,
    Table,
    concat,
    tier_of,
    times_of,
)

KEYED_PAGE_BYTES = 1 << 18  # smaller than other pages: of those, a lookup wants a few rows
Reduce: TypeAlias = Callable[[pa.RecordBatch, bool], pa.RecordBatch]


class KeyedTable(Table):
    """Rows of many keys, of which a batch needs some."""

    def append(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._add_rows(rows, self._new_id())

    def compact(self) -> None:
        """Nothing: `merge` has done it, since the operator knows what is left of rows."""

    def merge(self, reduce: Reduce) -> None:
        """Merge runs, if it is time. `reduce(rows, is_whole)` gets all rows of some keys that are
        in the runs that are merged, and returns those that count; the same rows must count
        whichever runs are merged first. Where `is_whole`, there are no others of these keys, so
        that a delete has nothing left to delete."""
        runs = self._runs()
        for chosen in _due(runs):
            self._merge([runs[run] for run in chosen], reduce, len(chosen) == len(runs))

    def _runs(self) -> dict[int, list[PageInfo]]:
        """Pages by run, in the order of their hashes."""
        runs: dict[int, list[PageInfo]] = {}
        for page in sorted(self.pages.values(), key=lambda it: it.first_hash):
            runs.setdefault(page.run, []).append(page)
        return runs

    def _merge(self, runs: Sequence[list[PageInfo]], reduce: Reduce, is_whole: bool) -> None:
        run = self._new_id()
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for rows in self._side_by_side([deque(pages) for pages in runs]):
            held.append(reduce(rows, is_whole))
            held_bytes += held[-1].nbytes
            if held_bytes >= KEYED_PAGE_BYTES:
                self._add_rows(concat(held), run, at_once=True)
                held, held_bytes = [], 0
        if held_bytes:
            self._add_rows(concat(held), run)

    def _side_by_side(self, runs: list[deque[PageInfo]]) -> Iterator[pa.RecordBatch]:
        """All rows of these runs, in steps: a step has all rows of its keys."""
        heads = [self._take_page(pages.popleft()) for pages in runs]
        while heads:
            bound = min(_hashes(head)[-1] for head in heads)
            counts = [int(np.searchsorted(_hashes(head), bound, "right")) for head in heads]
            yield concat([head.slice(0, n) for head, n in zip(heads, counts, strict=True)])
            rest = []
            for pages, head, count in zip(runs, heads, counts, strict=True):
                if count < head.num_rows:
                    rest.append((pages, head.slice(count)))
                elif pages:
                    rest.append((pages, self._take_page(pages.popleft())))
            runs, heads = [it[0] for it in rest], [it[1] for it in rest]

    def _take_page(self, page: PageInfo) -> pa.RecordBatch:
        rows = self._rows.get(page.page_id)
        if rows is None:
            rows = self._fetch(page)
        self._remove_page(page)
        return rows

    def _add_rows(self, rows: pa.RecordBatch, run: int, *, at_once: bool = False) -> None:
        """Pages of a run; they are kept in memory until the batch ends, or written `at_once`."""
        if not rows.num_rows:
            return
        for part in _parts_by_hash(rows):
            page = self._add_page(part, times_of(part, self.spec.time), run)
            if at_once:
                crc = self._put(page.page_id, self._rows.pop(page.page_id))
                self.pages[page.page_id] = page._replace(crc=crc)
                self._made.remove(page.page_id)


def _due(runs: dict[int, list[PageInfo]]) -> list[list[int]]:
    """The groups of runs that are to be merged."""
    rows = {run: sum(page.row_count for page in pages) for run, pages in runs.items()}
    if len(runs) > 1 and sum(rows.values()) >= 2 * max(rows.values()):
        return [list(runs)]
    tiers: dict[int, list[int]] = {}
    for run, pages in runs.items():
        tiers.setdefault(tier_of(sum(page.size_bytes for page in pages)), []).append(run)
    return [tier for tier in tiers.values() if len(tier) >= MERGE_COUNT]


def _parts_by_hash(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """In parts of about a page; all rows with one hash are in one of them."""
    part_count = -(-rows.nbytes // KEYED_PAGE_BYTES)
    if part_count <= 1:
        yield rows
        return
    rows = rows.take(pa.array(np.argsort(_hashes(rows), kind="stable")))
    hashes = _hashes(rows)
    cuts = hashes[np.arange(1, part_count) * rows.num_rows // part_count]
    bounds = distinct(np.concatenate([[0], np.searchsorted(hashes, cuts), [rows.num_rows]]))
    for begin, end in pairwise(bounds):
        yield rows.slice(begin, end - begin)


def _hashes(rows: pa.RecordBatch) -> np.ndarray:
    hashes: np.ndarray = rows.column(HASH).to_numpy()
    return hashes
