"""Runs: consecutive records of a share partition's window with the same state.

A window of thousands of records has only a few runs as long as members acknowledge whole
deliveries. It is split into single records only where they are acknowledged individually. Runs are
in offset order, without gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from millstream.coordination.share_state import DeliveryState

NO_MEMBER = ""

# Reasons for dead letters.
REJECTED = "rejected"  # by a member
LIMIT = "limit"  # they were delivered too often
CORRUPT = "corrupt"  # the log cannot be read there


class Run:
    """Consecutive offsets (both ends included) that share everything below.

    A run that is ACKNOWLEDGED is done: accepted, archived, or missing (a gap of compaction). Only
    the persisted state distinguishes these.
    """

    __slots__ = (
        "batch_first",
        "batch_size",
        "change",
        "delivery_count",
        "due_ms",
        "first",
        "last",
        "lock_end_ms",
        "member_id",
        "reason",
        "state",
        "target",
        "target_due_ms",
    )

    def __init__(
        self, first: int, last: int, state: DeliveryState, delivery_count: int, due_ms: int = 0
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.due_ms = due_ms  # AVAILABLE, but not before; 0 for at once
        self.member_id = NO_MEMBER  # of the member that holds it
        self.lock_end_ms = 0
        # The batch of its first delivery: redelivered as a whole if possible.
        self.batch_first = first
        self.batch_size = last - first + 1
        self.reason = LIMIT  # of those ARCHIVING
        self.change: object | None = None  # the `Change` that waits to be durable
        # What it becomes then.
        self.target = state
        self.target_due_ms = 0

    def __repr__(self) -> str:
        return f"<{self.first}-{self.last} {self.state.name} x{self.delivery_count}>"

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_done(self) -> bool:
        return self.state is DeliveryState.ACKNOWLEDGED

    @property
    def is_acquirable(self) -> bool:
        return self.state is DeliveryState.AVAILABLE and not self.due_ms

    def cut(self, first: int) -> Run:
        """Split the run at that offset; returns the second part."""
        rest = Run(first, self.last, self.state, self.delivery_count, self.due_ms)
        rest.member_id = self.member_id
        rest.lock_end_ms = self.lock_end_ms
        rest.batch_first = self.batch_first
        rest.batch_size = self.batch_size
        rest.reason = self.reason
        self.last = first - 1
        return rest


def _first(run: Run) -> int:
    return run.first


class Runs:
    """The runs in order, with binary search."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, index: int) -> Run:
        return self._runs[index]

    def append(self, run: Run) -> None:
        self._runs.append(run)

    def drop_head(self, count: int) -> None:
        del self._runs[:count]

    def find(self, offset: int) -> int:
        """The index of the run with this offset; 0 for one before them all."""
        return max(bisect_right(self._runs, offset, key=_first) - 1, 0)

    def at(self, offset: int) -> Run | None:
        if not self._runs or not self._runs[0].first <= offset <= self._runs[-1].last:
            return None
        return self._runs[self.find(offset)]

    def overlapping(self, first: int, last: int) -> list[Run]:
        """The runs with any of these offsets."""
        runs = self._runs
        begin = self.find(first)
        if begin < len(runs) and runs[begin].last >= last:  # mostly it is one
            return runs[begin : begin + 1] if runs[begin].first <= last else []
        return runs[begin : bisect_right(runs, last, begin, key=_first)]

    def isolate(self, run: Run, first: int, last: int) -> Run:
        """Split a run so that the offsets in this range are a separate run; returns it."""
        if run.first < first:
            piece = run.cut(first)
            self._runs.insert(self.find(run.first) + 1, piece)
            run = piece
        if run.last > last:
            rest = run.cut(last + 1)
            self._runs.insert(self.find(run.first) + 1, rest)
        return run

    def join_done(self, offset: int) -> None:
        """Merge the done runs around this offset."""
        runs = self._runs
        begin = end = self.find(offset)
        while begin and runs[begin - 1].is_done:
            begin -= 1
        while end + 1 < len(runs) and runs[end + 1].is_done:
            end += 1
        if end > begin:
            runs[begin].last = runs[end].last
            del runs[begin + 1 : end + 1]
