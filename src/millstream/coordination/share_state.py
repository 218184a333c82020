"""The state of a share partition: its start offset, and the state of each record after it.

    start offset ...................................................... end of what was delivered
    |  [ACKNOWLEDGED x1] [AVAILABLE x2, due later] [ARCHIVED x5] [ACKNOWLEDGED x1] ...

All records before the start offset are done. From there on, batches contain offsets with the same
state, delivery count and due time; an offset in no batch was never delivered, or is on its first
delivery (acquired records are not persisted).

A leader writes changes, and `combine` merges them. If both contain the same offset, the higher
delivery count wins, then the higher state (so that a late write cannot make an acknowledged record
available again), then the newer one. This is Kafka's rule; the due time, which Kafka does not
have, goes with the batch that wins.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

NO_START_OFFSET = -1  # the leader finds it, by share.auto.offset.reset
NO_COUNT = -1
NO_LEADER_EPOCH = -1


class DeliveryState(IntEnum):
    """The state of a record, with Kafka's numbers. ACQUIRED is never persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # given up, its dead letter not written yet (Kafka 4.4)
    ARCHIVED = 4


DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
# Of a record that waits for its next attempt: in answers to tools, never persisted.
DELAYED = 10


class SharePartitionKey(NamedTuple):
    """A partition as one share group consumes it."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


class StateBatch(NamedTuple):
    """Consecutive offsets (both ends included) with one state."""

    first_offset: int
    last_offset: int
    delivery_state: DeliveryState
    delivery_count: int
    due_ms: int = 0  # when an AVAILABLE batch may be delivered again; 0: at once


DUE_TIME = 11  # the state of an entry that has the due time of the entry before it


class DueTime(NamedTuple):
    """The due time of the batch before it, in the place of a last offset."""

    first_offset: int
    last_offset: int
    delivery_state: int = DUE_TIME
    delivery_count: int = 0


def to_entries(batches: Iterable[StateBatch]) -> Iterator[StateBatch | DueTime]:
    """Batches as brokers send them to each other. Kafka's messages have no field for due times, so
    a delayed batch is followed by an entry of its own."""
    for batch in batches:
        yield batch
        if batch.due_ms:
            yield DueTime(batch.first_offset, batch.due_ms)


def from_entries(entries: Iterable[Any]) -> list[StateBatch]:
    """The batches of such entries. Raises `ValueError` for one that is in no possible state."""
    batches: list[StateBatch] = []
    for entry in entries:
        first, last = int(entry.first_offset), int(entry.last_offset)
        if entry.delivery_state == DUE_TIME and batches and batches[-1].first_offset == first:
            batches[-1] = batches[-1]._replace(due_ms=last)
        else:
            state = DeliveryState(entry.delivery_state)
            batches.append(StateBatch(first, last, state, int(entry.delivery_count)))
    return batches


class ShareState(NamedTuple):
    """The complete state of a share partition."""

    state_epoch: int  # incremented when the group's offset is reset; older writes are refused
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int  # done offsets from the start offset on; -1: unknown
    batches: tuple[StateBatch, ...]  # in order, none overlaps


class ShareStateSummary(NamedTuple):
    """The same without the batches; by default of what was never initialized."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_START_OFFSET
    delivery_complete_count: int = NO_COUNT


class StateWrite(NamedTuple):
    """A leader's changes of one share partition."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


def combine(known: list[StateBatch], new: Iterable[StateBatch], start_offset: int) -> None:
    """Merge `new` into `known`, in place, and drop offsets below the start offset.

    `known` is in order and does not overlap, before and after; `new` may be in any order and may
    overlap. The cost depends on the size of `new`, not of `known`.
    """
    for batch in new:
        _lay_over(known, batch)
    _drop_before(known, start_offset)


def cut(batches: Iterable[StateBatch], end_offset: int) -> tuple[StateBatch, ...]:
    """These batches, cut at the end offset."""
    return tuple(
        batch._replace(last_offset=min(batch.last_offset, end_offset - 1))
        for batch in batches
        if batch.first_offset < end_offset
    )


def _lay_over(known: list[StateBatch], batch: StateBatch) -> None:
    first, last = batch.first_offset, batch.last_offset
    if not known or known[-1].last_offset < first - 1:
        known.append(batch)  # after all known batches, as usual
        return
    begin = bisect_left(known, (first,))
    if begin and known[begin - 1].last_offset >= first - 1:
        begin -= 1  # it overlaps, or ends where the new one begins
    end = bisect_left(known, (last + 2,), begin)
    known[begin:end] = _merged(known[begin:end], batch)


def _merged(touched: list[StateBatch], batch: StateBatch) -> list[StateBatch]:
    """The new batch among those that it overlaps or adjoins, in order."""
    pieces: list[StateBatch] = []
    position, end = batch.first_offset, batch.last_offset + 1
    for old in touched:
        old_first, old_last = old.first_offset, old.last_offset
        if old_first < position:
            _add(pieces, old, old_first, min(old_last, position - 1))
        shared_first, shared_last = max(old_first, position), min(old_last, end - 1)
        if shared_first <= shared_last:
            _add(pieces, batch, position, shared_first - 1)
            _add(pieces, _winner(old, batch), shared_first, shared_last)
            position = shared_last + 1
        if old_last >= end:
            _add(pieces, batch, position, end - 1)
            position = end
            _add(pieces, old, max(old_first, end), old_last)
    _add(pieces, batch, position, end - 1)
    return pieces


def _winner(old: StateBatch, new: StateBatch) -> StateBatch:
    if (new.delivery_count, new.delivery_state) >= (old.delivery_count, old.delivery_state):
        return new
    return old


def _add(pieces: list[StateBatch], like: StateBatch, first: int, last: int) -> None:
    """Add these offsets with the state of `like`, joined to what they continue."""
    if first > last:
        return
    if pieces and pieces[-1].last_offset == first - 1 and pieces[-1][2:] == like[2:]:
        first = pieces.pop().first_offset
    if first == like.first_offset and last == like.last_offset:
        pieces.append(like)
    else:
        pieces.append(StateBatch(first, last, *like[2:]))


def _drop_before(known: list[StateBatch], start_offset: int) -> None:
    if not known or known[0].first_offset >= start_offset:
        return
    end = bisect_left(known, (start_offset,))
    if end and known[end - 1].last_offset >= start_offset:
        end -= 1
        known[end] = known[end]._replace(first_offset=start_offset)
    del known[:end]
