"""Positions in the log, which a target keeps with its data, and the rule for writing to it.

A write covers a range of offsets of one or more partitions. It contains the position that the
target must have before it, and the position that the target has after it. The target compares and
replaces them in the transaction of the rows. So a write is applied once: a replay, a paused process
that continues (a zombie) and a second process with the same name find another position than the one
they expect, and change nothing.

The position contains the id of the topic. A topic that was deleted and created again has another
id, and its offsets mean something else. The position also identifies the record before it, so that
a log which has lost records, and has others at their offsets, is noticed: see `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.errors import MillstreamError

UNKNOWN = -1


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Position(NamedTuple):
    """How far a partition has been applied: the next offset, in this life of the topic.

    Positions of earlier versions do not identify the record before the offset.
    """

    topic_id: str
    offset: int
    epoch: int = UNKNOWN  # the leader epoch of the batch with the record before the offset
    timestamp: int = UNKNOWN  # of this record, in milliseconds


class Step(NamedTuple):
    """One partition's part of a write."""

    place: Place
    before: Position | None  # None: the target has nothing of the partition
    after: Position


class PositionMoved(MillstreamError):
    """The target is not at the position where the write begins; nothing of it is applied."""


def check_steps(steps: Iterable[Step], stored: Mapping[Place, Position]) -> None:
    """Raise `PositionMoved` unless the target is exactly where every step begins."""
    for step in steps:
        found = stored.get(step.place)
        if found != step.before:
            raise PositionMoved(
                f"{step.place}: the target is at {_shown(found)}, the write begins at "
                f"{_shown(step.before)}; another process writes to it, or it was restored"
            )


def _shown(position: Position | None) -> str:
    return "no offset" if position is None else f"offset {position.offset}"
