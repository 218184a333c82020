"""What tests of share windows have in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from millstream.coordination.share_state import DeliveryState
from millstream.coordination.sharing.acquisition import Acquired, LogBatch, Wish, acquire
from millstream.coordination.sharing.changes import Change
from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.window import ShareWindow


def log_of(*sizes: int, first: int = 0) -> list[LogBatch]:
    """Batches of these sizes, one after the other."""
    batches = []
    for size in sizes:
        batches.append(LogBatch(first, first + size - 1))
        first += size
    return batches


def take(
    window: ShareWindow,
    log: Sequence[LogBatch],
    member: str = "a",
    *,
    records: int = 500,
    batch_size: int = 500,
    record_limit: bool = False,
    now_ms: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
) -> list[Acquired]:
    """Acquire as a leader would: read the log from where the first record can be had."""
    if not window.can_acquire:
        return []
    offset = window.next_fetch_offset
    read = [batch for batch in log if batch.last_offset >= offset]
    wish = Wish(member, records, batch_size, record_limit)
    return acquire(window, wish, offset, read, now_ms, aborted=aborted)


def settle(window: ShareWindow, change: Change) -> None:
    """The change is durable."""
    window.prepare_write([change])
    window.commit(change)


def say(
    window: ShareWindow, first: int, last: int, kind: int, member: str = "a", *, now_ms: int = 0
) -> None:
    """A member's word on its records, made durable."""
    settle(window, window.acknowledge(member, [(first, last, kind)], now_ms))


def states(window: ShareWindow) -> dict[int, DeliveryState]:
    """Every offset of the window."""
    return {
        offset: DeliveryState(batch.delivery_state)
        for batch in window.describe()
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }


def check(window: ShareWindow) -> None:
    """What always holds: no gaps, no overlaps, counts that are right, nothing acquirable hidden."""
    runs = list(window.runs)
    offset = window.start_offset
    for run in runs:
        assert run.first == offset, runs
        assert run.last >= run.first, runs
        offset = run.last + 1
    assert offset == window.end_offset, (runs, window.end_offset)
    assert not runs or not runs[0].is_done, runs
    assert not any(a.is_done and b.is_done for a, b in pairwise(runs)), runs
    assert window.done_count == sum(len(run) for run in runs if run.is_done)
    held = (DeliveryState.ACQUIRED, DeliveryState.ARCHIVING)
    assert window.held_count == sum(len(run) for run in runs if run.state in held)
    dying = sum(len(run) for run in runs if run.state is DeliveryState.ARCHIVING)
    assert window.dying_count == dying
    delayed = sum(len(run) for run in runs if run.due_ms or run.target_due_ms)
    assert window.delayed_count == delayed, (window.delayed_count, runs)
    acquirable = [run.first for run in runs if run.is_acquirable]
    assert window.next_fetch_offset == min(acquirable, default=window.end_offset)


LIMITS = Limits()
