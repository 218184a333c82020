"""A table that is looked up by key, and may be larger than memory: sorted runs of pages.

A run has the rows of one batch, or of several that were merged, in the order of their hashes. Its
pages cover ranges of hashes that do not overlap. A lookup reads, of each run, the pages whose range
contains a wanted hash.

A changed row is appended; the replaced row stays in its run until a merge. So a batch writes only
its new rows. The operator calls `merge` in every batch, with a function that reduces the rows of a
key. Then

    all runs are merged     if the largest has no more rows than all others together. So a table
                            has at most twice the rows that it had after the last such merge
    four of similar size    become one, so that there are few runs

A merge reads its runs side by side, a few pages of each, in the order of hashes. It has these in
memory, whatever the size of the runs, and writes each page when it is full. A row is rewritten each
time its table has doubled.
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
    by_hash,
    concat,
    tier_of,
    times_of,
)

KEYED_PAGE_BYTES = 1 << 18  # smaller than other pages: a lookup needs a few rows of a page
HEAD_PAGES = 4  # of a run that are merged at once: a step costs as much as some thousand rows
Reduce: TypeAlias = Callable[[pa.RecordBatch, bool], pa.RecordBatch]


class KeyedTable(Table):
    """Rows of many keys, of which a batch looks up some."""

    def append(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._add_rows(rows, self._new_id())

    def compact(self) -> None:
        """A no-op: `merge` compacts, because only the operator can reduce rows."""

    def merge(self, reduce: Reduce) -> None:
        """Merge runs if it is due. `reduce(rows, is_whole)` gets all rows of some keys that are in
        the merged runs, and returns those to keep. The result must not depend on the order of
        merges. If `is_whole`, no other run has rows of these keys, so deletes can be removed."""
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
        """All rows of these runs, in steps; each step has all rows of its keys."""
        heads = [self._take_pages(pages) for pages in runs]
        while heads:
            bound = min(_hashes(head)[-1] for head in heads)
            counts = [int(np.searchsorted(_hashes(head), bound, "right")) for head in heads]
            yield concat([head.slice(0, n) for head, n in zip(heads, counts, strict=True)])
            rest = []
            for pages, head, count in zip(runs, heads, counts, strict=True):
                if count < head.num_rows:
                    rest.append((pages, head.slice(count)))
                elif pages:
                    rest.append((pages, self._take_pages(pages)))
            runs, heads = [it[0] for it in rest], [it[1] for it in rest]

    def _take_pages(self, pages: deque[PageInfo]) -> pa.RecordBatch:
        """The rows of the next pages of a run."""
        count = min(len(pages), HEAD_PAGES)
        return concat([self._take_page(pages.popleft()) for _ in range(count)])

    def _take_page(self, page: PageInfo) -> pa.RecordBatch:
        rows = self._rows.get(page.page_id)
        if rows is None:
            rows = self._fetch(page)
        self._remove_page(page)
        return rows

    def _add_rows(self, rows: pa.RecordBatch, run: int, *, at_once: bool = False) -> None:
        """Add pages to a run; they stay in memory until the batch ends, or are written now."""
        if not rows.num_rows:
            return
        for part in _parts_by_hash(rows):
            page = self._add_page(part, times_of(part, self.spec.time), run)
            if at_once:
                crc = self._put(page.page_id, self._rows.pop(page.page_id))
                self.pages[page.page_id] = page._replace(crc=crc)
                self._made.remove(page.page_id)


def _due(runs: dict[int, list[PageInfo]]) -> list[list[int]]:
    """The groups of runs that are due to be merged."""
    rows = {run: sum(page.row_count for page in pages) for run, pages in runs.items()}
    if len(runs) > 1 and sum(rows.values()) >= 2 * max(rows.values()):
        return [list(runs)]
    tiers: dict[int, list[int]] = {}
    for run, pages in runs.items():
        tiers.setdefault(tier_of(sum(page.size_bytes for page in pages)), []).append(run)
    return [tier for tier in tiers.values() if len(tier) >= MERGE_COUNT]


def _parts_by_hash(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts of about a page; no part splits the rows of a hash."""
    part_count = -(-rows.nbytes // KEYED_PAGE_BYTES)
    if part_count <= 1:
        yield rows
        return
    rows = by_hash(rows)
    hashes = _hashes(rows)
    cuts = hashes[np.arange(1, part_count) * rows.num_rows // part_count]
    bounds = distinct(np.concatenate([[0], np.searchsorted(hashes, cuts), [rows.num_rows]]))
    for begin, end in pairwise(bounds):
        yield rows.slice(begin, end - begin)


def _hashes(rows: pa.RecordBatch) -> np.ndarray:
    hashes: np.ndarray = rows.column(HASH).to_numpy()
    return hashes
