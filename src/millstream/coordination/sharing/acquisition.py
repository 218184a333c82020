"""Acquisition: selects the records that a member gets.

Released records come before new ones, each batch as a whole as it was first delivered, if it can.
The member's limit on records is soft, so that batches of the log stay whole, unless it asks for
`record_limit` (KIP-1206): then it gets no more than that.

A record that fails again and again takes its whole batch down with it. So from half of the allowed
deliveries on, only half of the batch is delivered, then a quarter, and so on; the last attempt
delivers the record alone. Such records are never mixed with others.

Offsets where the log has nothing (compaction, control batches) are acquired with what is around
them, and the member reports them as gaps; only where a read finds nothing up to the first batch
are they done with at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.coordination.share_state import DeliveryState
from millstream.coordination.sharing.runs import Run
from millstream.coordination.sharing.window import ShareWindow


class LogBatch(NamedTuple):
    """A batch of the log, as read."""

    first_offset: int
    last_offset: int


class Acquired(NamedTuple):
    """Consecutive records that a member holds now."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Wish(NamedTuple):
    """Limits requested by a member."""

    member_id: str
    records_max: int
    batch_size: int  # preferred number of records per acknowledgement
    record_limit: bool = False  # records_max is a hard limit


def acquire(
    window: ShareWindow,
    wish: Wish,
    fetch_offset: int,
    batches: Sequence[LogBatch],
    now_ms: int,
    *,
    aborted: Iterable[tuple[int, int]] = (),
) -> list[Acquired]:
    """Lock records of these batches, read from `fetch_offset` on, for the member.

    Records in the `aborted` ranges are not delivered: they are marked as done.
    """
    if not batches or batches[-1].last_offset < window.start_offset or wish.records_max <= 0:
        return []
    _skip_missing(window, fetch_offset, batches[0].first_offset)
    return _Acquisition(window, wish, batches, now_ms).run(
        max(fetch_offset, window.start_offset), aborted
    )


def _skip_missing(window: ShareWindow, fetch_offset: int, first_offset: int) -> None:
    """Skip the gap between the requested offset and the first offset in the log."""
    if first_offset <= fetch_offset:
        return
    last = first_offset - 1
    missing = [
        window.isolate(run, fetch_offset, last)
        for run in window.runs.overlapping(fetch_offset, last)
        if run.is_acquirable
    ]
    if window.end_offset <= last:
        run = Run(window.end_offset, last, DeliveryState.AVAILABLE, 0)
        window.extend(run)
        missing.append(run)
    window.finish(missing)


class _Acquisition:
    """One acquisition for one member."""

    def __init__(
        self, window: ShareWindow, wish: Wish, batches: Sequence[LogBatch], now_ms: int
    ) -> None:
        self._window = window
        self._wish = wish
        self._batches = batches
        self._now_ms = now_ms
        self._taken: list[Run] = []
        self._count = 0
        self._most = 0
        self._throttled_to: int | None = None  # how many there may be of a batch that fails
        self._is_over = False

    def run(self, first: int, aborted: Iterable[tuple[int, int]]) -> list[Acquired]:
        window = self._window
        last = self._batches[-1].last_offset
        may_extend = window.room > 0
        if may_extend:
            self._most = min(self._wish.records_max, window.room)
        elif window.can_acquire:  # what is in the window already may come again
            self._most = min(self._wish.records_max, window.end_offset - first)
        self._take_again(first, last)
        first = max(first, window.end_offset)
        if may_extend and not self._is_over and self._count < self._most and first <= last:
            for new_first, new_last in self._pieces(window.end_offset, last):
                run = Run(new_first, new_last, DeliveryState.AVAILABLE, 0)
                window.extend(run)
                self._take(run)
        self._drop(aborted)
        return _as_acquired(self._taken)

    # Records of the window

    def _take_again(self, first: int, last: int) -> None:
        runs = [run for run in self._window.runs.overlapping(first, last) if run.is_acquirable]
        for index, run in enumerate(runs):
            is_new_batch = index == 0 or run.batch_first != runs[index - 1].batch_first
            if is_new_batch and not self._may_begin_batch(runs, index):
                self._is_over = True
            if self._is_over:
                return
            if run.delivery_count == 0:
                self._take_fresh(run, first, last)
                continue
            size = min(run.last, last) - max(run.first, first) + 1
            if self._throttled_to is not None or self._is_throttled(run):
                size = min(size, self._throttled_size(run))
            if self._wish.record_limit:
                size = min(size, self._most - self._count)
            if size <= 0:
                self._is_over = True
                return
            begin = max(run.first, first)
            self._take(self._window.isolate(run, begin, begin + size - 1))
        self._is_over = self._is_over or self._throttled_to is not None

    def _may_begin_batch(self, runs: Sequence[Run], index: int) -> bool:
        """Whether the batch that starts here can be delivered together with earlier ones."""
        if self._count >= self._most or self._throttled_to is not None:
            return False
        if not self._count:
            return True
        batch_first = runs[index].batch_first
        for run in runs[index:]:
            if run.batch_first != batch_first:
                break
            if self._is_throttled(run):
                return False
        return True

    def _is_throttled(self, run: Run) -> bool:
        return run.delivery_count >= self._window.limits.throttled_from

    def _throttled_size(self, run: Run) -> int:
        """How many more records of the failing batch can be delivered."""
        limits = self._window.limits
        if limits.is_last_attempt(run.delivery_count):
            self._throttled_to = self._count if self._count else 1
            return 0 if self._count else 1
        if self._throttled_to is None:
            halvings = run.delivery_count - limits.throttled_from + 1
            self._throttled_to = max(1, run.batch_size >> halvings)
        return max(self._throttled_to - self._count, 0)

    # Records that were never delivered

    def _take_fresh(self, run: Run, first: int, last: int) -> None:
        begin = max(run.first, first)
        if self._count >= self._most:
            self._is_over = True
            return
        for new_first, new_last in self._pieces(begin, min(run.last, last)):
            piece = self._window.isolate(run, new_first, new_last)
            piece.batch_first = piece.first
            piece.batch_size = len(piece)
            self._take(piece)
            rest = self._window.runs.at(new_last + 1)
            if rest is None:
                break
            run = rest

    def _pieces(self, first: int, last: int) -> list[tuple[int, int]]:
        """These new offsets, up to the limit, in batches of about the preferred size."""
        most = self._most - self._count
        if last - first + 1 > most:
            wanted_last = first + most - 1
            if not self._wish.record_limit:
                wanted_last = min(self._end_of_batch(wanted_last), last)
            last = wanted_last
        size = max(self._wish.batch_size, 1)
        if self._wish.record_limit or last - first + 1 <= size:
            return [(first, last)]
        pieces: list[tuple[int, int]] = []
        for batch in self._batches:
            if batch.first_offset > last:
                break
            if batch.first_offset - first >= size:
                pieces.append((first, batch.first_offset - 1))
                first = batch.first_offset
        pieces.append((first, last))
        return pieces

    def _end_of_batch(self, offset: int) -> int:
        """The last offset of the log batch that contains this offset."""
        for batch in self._batches:
            if batch.first_offset <= offset <= batch.last_offset:
                return batch.last_offset
        return offset

    def _take(self, run: Run) -> None:
        self._window.hold(run, self._wish.member_id, self._now_ms)
        self._taken.append(run)
        self._count += len(run)

    def _drop(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Remove records of aborted transactions."""
        runs = self._window.runs
        ranges = [(run.first, run.last) for run in self._taken]
        dropped = [
            runs.isolate(run, aborted_first, aborted_last)
            for aborted_first, aborted_last in aborted
            for first, last in ranges
            if first <= aborted_last and aborted_first <= last
            for run in runs.overlapping(max(first, aborted_first), min(last, aborted_last))
        ]
        if dropped:
            self._window.finish(dropped)
            self._taken = [
                run
                for first, last in ranges
                for run in runs.overlapping(first, last)
                if run.state is DeliveryState.ACQUIRED
            ]


def _as_acquired(taken: Sequence[Run]) -> list[Acquired]:
    """Acquired ranges for the response, one per acknowledgeable range."""
    acquired: list[Acquired] = []
    batch_first = -1
    for run in taken:
        if acquired and run.batch_first == batch_first:
            before = acquired[-1]
            if before[1] == run.first - 1 and before[2] == run.delivery_count:
                acquired[-1] = before._replace(last_offset=run.last)
                continue
        acquired.append(Acquired(run.first, run.last, run.delivery_count))
        batch_first = run.batch_first
    return acquired
