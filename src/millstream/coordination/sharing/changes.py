"""Changes of a window that are being persisted.

An acknowledgement takes effect when it is durable: until then its records stay held, and a failure
leaves them so. A timeout takes effect at once and is written afterwards: it needs no confirmation,
and a failed write does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.coordination.share_state import DeliveryState, StateBatch
from millstream.coordination.sharing.runs import Run


class Change:
    """The effect of one event on a window."""

    __slots__ = ("batches", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []  # those that wait for it; each has `change` set to this
        self.batches: list[StateBatch] = []  # what is persisted

    def add(self, run: Run, state: DeliveryState, due_ms: int) -> None:
        """Add this state of the run, merged with the previous run if equal."""
        batches = self.batches
        first = run.first
        if batches:
            before = batches[-1]
            if before.last_offset == first - 1 and before[2:] == (
                state,
                run.delivery_count,
                due_ms,
            ):
                batches.pop()
                first = before.first_offset
        batches.append(StateBatch(first, run.last, state, run.delivery_count, due_ms))


class Write(NamedTuple):
    """A write to the persister, with several changes."""

    start_offset: int
    delivery_complete_count: int
    batches: list[StateBatch]


def combined(changes: Iterable[Change], start_offset: int) -> list[StateBatch]:
    """The batches of all changes from the start offset on, in order, neighbours joined.

    Two batches may contain the same record (its lock expired, the next member accepted it): the
    persister keeps the one with the higher delivery count.
    """
    every = sorted(batch for change in changes for batch in change.batches)
    joined: list[StateBatch] = []
    for batch in every:
        if batch.last_offset < start_offset:
            continue
        if batch.first_offset < start_offset:
            batch = batch._replace(first_offset=start_offset)
        if joined:
            before = joined[-1]
            if before.last_offset == batch.first_offset - 1 and before[2:] == batch[2:]:
                joined[-1] = before._replace(last_offset=batch.last_offset)
                continue
        joined.append(batch)
    return joined
