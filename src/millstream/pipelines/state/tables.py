"""A table of a bucket: rows in immutable pages.

Operations, all on whole columns:

    append(rows)                        add rows, in any order
    select(first_us, last_us, hashes)   rows within a time range, optionally only of some keys
    take(keys)                          remove and return the rows of these keys: take, change and
                                        append updates rows
    expire(before_us)                   delete rows before a time

A page is read when an operation needs one of its rows, and at most once per batch as long as the
pages read fit into `CACHE_BYTES`. Whole pages expire unread. Of a page that has expired in part,
the old rows are hidden, and removed when the page is rewritten.

New rows make new pages. Pages smaller than half of `PAGE_BYTES` are merged, four of similar size at
a time, so a row is rewritten a few times at most and a bucket has few pages. Larger appends are
split by time. Tables that are looked up by key are stored in another order: see keyed_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import HASH, HASH_FIELD, Hashes, Numbers, equal_keys

PAGE_BYTES = 1 << 20
MERGE_COUNT = 4
SMALLEST_TIER_BYTES = 1 << 12
CACHE_BYTES = 32 << 20  # of pages that were read, kept for the rest of the batch
NO_HORIZON = -(2**63)


class StateTableSpec(NamedTuple):
    """A table of an operator's state: its columns, which of them are the key, and which is the
    time, if any. Tables in stores are `stores.TableSpec`.

    A table `by_key` may be larger than memory: it is a `KeyedTable`, which its operator merges. The
    operator does not compute with columns in `carried`: they may be added later, and are null in
    older rows. `earlier` are columns with the names that earlier versions stored them by.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str | None
    by_key: bool = False
    carried: frozenset[str] = frozenset()
    earlier: tuple[tuple[str, str], ...] = ()

    @classmethod
    def carrying(
        cls,
        schema: pa.Schema,
        keys: tuple[str, ...],
        time: str | None,
        *,
        used: Iterable[str | None] = (),
        by_key: bool = False,
        earlier: Iterable[tuple[str, str]] = (),
    ) -> StateTableSpec:
        """A table whose columns are carried, except for the key, the time and those in `used`."""
        carried = frozenset(schema.names) - {*keys, time, *used}
        return cls(schema, keys, time, by_key, carried, tuple(earlier))

    @property
    def other_columns(self) -> list[str]:
        """The columns besides the key and the time: those that may change."""
        return [name for name in self.schema.names if name not in (*self.keys, self.time)]

    @property
    def page_schema(self) -> pa.Schema:
        return pa.schema([HASH_FIELD, *self.schema])


class PageInfo(NamedTuple):
    """A page in the index."""

    page_id: int
    first_us: int
    last_us: int
    row_count: int
    size_bytes: int
    crc: int
    first_hash: int
    last_hash: int
    run: int  # the pages of a keyed table that were made together; see keyed_tables.py


class Table:
    """A table during one batch. `fetch` reads a page's rows, `put` writes them and returns their
    CRC; `new_id` returns numbers that were never used."""

    def __init__(
        self,
        spec: StateTableSpec,
        pages: Sequence[PageInfo],
        horizon_us: int,
        fetch: Callable[[PageInfo], pa.RecordBatch],
        put: Callable[[int, pa.RecordBatch], int],
        new_id: Callable[[], int],
    ) -> None:
        self.spec = spec
        self.horizon_us = horizon_us
        self.pages = {page.page_id: page for page in pages}
        self.removed: list[int] = []
        self._fetch = fetch
        self._put = put
        self._new_id = new_id
        self._rows: dict[int, pa.RecordBatch] = {}  # of pages that were read or created
        self._cached_bytes = 0  # of pages that were read
        self._made: set[int] = set()

    @property
    def row_count(self) -> int:
        """Rows of all pages, including expired rows of pages that still exist."""
        return sum(page.row_count for page in self.pages.values())

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows with the columns of `spec.page_schema`; expired ones are hidden."""
        if not rows.num_rows:
            return
        piece_count = -(-rows.nbytes // PAGE_BYTES)
        times = times_of(rows, self.spec.time)
        if piece_count == 1:
            self._add_page(rows, times)
            return
        for piece in _pieces_by_time(times, piece_count):
            self._add_page(rows.take(pa.array(piece)), times[piece])

    def select(
        self,
        first_us: int | None = None,
        last_us: int | None = None,
        hashes: Hashes | None = None,
    ) -> pa.RecordBatch:
        """Rows with `first_us <= time <= last_us`, of keys with these (sorted) hashes."""
        first_us = self.horizon_us if first_us is None else max(first_us, self.horizon_us)
        found = [self._empty()]
        for page in list(self.pages.values()):
            if page.last_us < first_us or (last_us is not None and page.first_us > last_us):
                continue
            wanted = None if hashes is None else _within(page, hashes)
            if wanted is not None and not len(wanted):
                continue
            rows = self._load(page)
            if wanted is not None:
                rows = rows.take(pa.array(_rows_with(rows, wanted)))
            if page.first_us < first_us or (last_us is not None and page.last_us > last_us):
                times = times_of(rows, self.spec.time)
                within = times >= first_us
                if last_us is not None:
                    within &= times <= last_us
                rows = rows.filter(pa.array(within))
            found.append(rows)
        return concat(found)

    def take(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Remove and return the rows of keys; `keys` has `_hash` and the columns of the key."""
        order = np.argsort(keys.column(HASH).to_numpy(), kind="stable")
        keys = keys.take(pa.array(order))
        hashes = keys.column(HASH).to_numpy()
        taken = [self._empty()]
        for page in list(self.pages.values()):
            if not len(_within(page, hashes)):
                continue
            rows = self._load(page)
            is_taken = self._has_key(rows, keys)
            if not is_taken.any():
                continue
            taken.append(rows.filter(pa.array(is_taken)))
            self._remove_page(page)
            self.append(rows.filter(pa.array(~is_taken)))
        return self._unexpired(concat(taken))

    def expire(self, before_us: int) -> None:
        """Delete rows whose time is before this. The horizon never goes back."""
        self.horizon_us = max(self.horizon_us, before_us)
        for page in list(self.pages.values()):
            if page.last_us < self.horizon_us:
                self._remove_page(page)

    def compact(self) -> None:
        """Merge small pages of similar size, if there are enough of them."""
        tiers: dict[int, list[PageInfo]] = {}
        for page in self.pages.values():
            if page.size_bytes < PAGE_BYTES // 2:
                tiers.setdefault(tier_of(page.size_bytes), []).append(page)
        for small in tiers.values():
            if len(small) < MERGE_COUNT:
                continue
            merged = self._unexpired(concat([self._load(page) for page in small]))
            for page in small:
                self._remove_page(page)
            self.append(merged)

    def made(self) -> Iterator[tuple[PageInfo, pa.RecordBatch]]:
        """The pages that were created in this batch."""
        return ((self.pages[page_id], self._rows[page_id]) for page_id in sorted(self._made))

    def close(self) -> None:
        """Release all rows. The bucket and its tables refer to each other, so their memory would
        otherwise stay until the garbage collector finds the cycle."""
        self._rows.clear()

    def _has_key(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> np.ndarray:
        """Which rows have one of the keys, which are sorted by hash; keys may share a hash."""
        wanted = keys.column(HASH).to_numpy()
        hashes = rows.column(HASH).to_numpy()
        at = np.searchsorted(wanted, hashes)
        end = np.searchsorted(wanted, hashes, side="right")
        key_columns = [keys.column(name) for name in self.spec.keys]
        row_columns = [rows.column(name) for name in self.spec.keys]
        is_found = np.zeros(rows.num_rows, np.bool_)
        candidates = np.flatnonzero(at < end)
        while len(candidates):
            equal = equal_keys(row_columns, candidates, key_columns, at[candidates])
            is_found[candidates[equal]] = True
            at[candidates] += 1
            candidates = candidates[~equal & (at < end)[candidates]]
        return is_found

    def _add_page(self, rows: pa.RecordBatch, times: Numbers, run: int | None = None) -> PageInfo:
        rows = by_hash(rows)
        hashes = rows.column(HASH).to_numpy()
        page_id = self._new_id()
        page = PageInfo(
            page_id,
            int(times.min()),
            int(times.max()),
            rows.num_rows,
            rows.nbytes,
            crc=0,
            first_hash=int(hashes[0]),
            last_hash=int(hashes[-1]),
            run=page_id if run is None else run,
        )
        self.pages[page_id] = page
        self._rows[page_id] = rows
        self._made.add(page_id)
        return page

    def _remove_page(self, page: PageInfo) -> None:
        del self.pages[page.page_id]
        self._rows.pop(page.page_id, None)
        if page.page_id in self._made:
            self._made.remove(page.page_id)
        else:
            self.removed.append(page.page_id)

    def _load(self, page: PageInfo) -> pa.RecordBatch:
        rows = self._rows.get(page.page_id)
        if rows is None:
            rows = self._fetch(page)
            if self._cached_bytes + page.size_bytes <= CACHE_BYTES:
                self._cached_bytes += page.size_bytes
                self._rows[page.page_id] = rows
        return rows

    def _unexpired(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        times = times_of(rows, self.spec.time)
        is_kept = times >= self.horizon_us
        return rows if is_kept.all() else rows.filter(pa.array(is_kept))

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.spec.page_schema)


def times_of(rows: pa.RecordBatch, time: str | None) -> Numbers:
    """A column of timestamps in microseconds; zeros for a table without time."""
    if time is None:
        return np.zeros(rows.num_rows, np.int64)
    times: Numbers = rows.column(time).view(pa.int64()).to_numpy()
    return times


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows in one batch; empty batches cost nothing."""
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else batches[0]
    return pa.concat_batches(filled)


def by_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in the order of their hashes; mostly, they have it."""
    hashes = rows.column(HASH).to_numpy()
    if (hashes[1:] >= hashes[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(hashes, kind="stable")))


def expand(starts: Numbers, lengths: Numbers) -> Numbers:
    """The numbers `start .. start + length - 1` of each range, one range after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    expanded: Numbers = np.arange(total) + np.repeat(starts - ends + lengths, lengths)
    return expanded


def _within(page: PageInfo, hashes: Hashes) -> Hashes:
    """The (sorted) hashes that are within the range of the page."""
    begin = np.searchsorted(hashes, np.uint64(page.first_hash))
    return hashes[begin : np.searchsorted(hashes, np.uint64(page.last_hash), side="right")]


def _pieces_by_time(times: Numbers, piece_count: int) -> Iterator[Numbers]:
    """Equal shares of the rows, by time. Each is in the order in which they were, which is mostly
    that of their hashes: no page has to be sorted again."""
    bounds = [place * len(times) // piece_count for place in range(piece_count + 1)]
    shares = np.argpartition(times, bounds[1:-1])
    for begin, end in pairwise(bounds):
        if begin < end:
            yield np.sort(shares[begin:end])


def _rows_with(rows: pa.RecordBatch, hashes: Hashes) -> Numbers:
    """The places of rows with these hashes; both are sorted."""
    own = rows.column(HASH).to_numpy()
    if 2 * len(hashes) > len(own):  # most rows: one search for each is less than two for each hash
        at = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
        return np.flatnonzero(hashes[at] == own)
    starts = np.searchsorted(own, hashes)
    return expand(starts, np.searchsorted(own, hashes, side="right") - starts)


def tier_of(size_bytes: int) -> int:
    """Pages of one tier differ by a factor of 4 at most."""
    return (size_bytes // SMALLEST_TIER_BYTES).bit_length() // 2
