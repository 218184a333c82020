"""The states of all aggregates of a partition, folded from its events. Pure: no I/O.

A view also knows the last commands of each aggregate, so that a command that is sent again is
answered with what it did the first time.
"""

from __future__ import annotations

import shlex
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple

from millstream.errors import MillstreamError
from millstream.events.aggregate import Aggregate, State, UnknownSchema
from millstream.events.event import StoredEvent

COMMANDS_REMEMBERED = 32  # per aggregate
AGGREGATES_MAX = 1_000_000


class Done(NamedTuple):
    """A command that was accepted: the versions of its first and last event."""

    command_id: str
    first_version: int
    last_version: int


@dataclass(slots=True)
class Current(Generic[State]):
    """An aggregate as of its last known event."""

    state: State
    version: int = 0
    offset: int = -1
    commands: deque[Done] = field(default_factory=lambda: deque(maxlen=COMMANDS_REMEMBERED))

    def find(self, command_id: str) -> Done | None:
        return next((done for done in self.commands if done.command_id == command_id), None)


class View(Generic[State]):
    """See the module. `position` is the offset of the next event."""

    def __init__(self, aggregate: Aggregate[State, Any], *, position: int = 0) -> None:
        self._aggregate = aggregate
        self.position = position
        self.known: dict[str, Current[State]] = {}
        self.changed: set[str] = set()  # since the last snapshot

    def get(self, aggregate_id: str) -> Current[State]:
        found = self.known.get(aggregate_id)
        return Current(self._aggregate.initial) if found is None else found

    def forget(self, aggregate_id: str) -> None:
        """Let an aggregate begin again."""
        self.known.pop(aggregate_id, None)
        self.changed.discard(aggregate_id)

    def apply(self, stored: StoredEvent) -> None:
        """Raises `MillstreamError` if events are missing. A later first event means that the
        aggregate has begun again, because its events were deleted."""
        current = self.known.get(stored.aggregate_id)
        if current is None:
            if len(self.known) >= AGGREGATES_MAX:
                raise MillstreamError(
                    f"a partition has more than {AGGREGATES_MAX} aggregates: partitions cannot be "
                    "added, so copy the events to a topic with more of them"
                )
            current = self.known[stored.aggregate_id] = Current(self._aggregate.initial)
        if stored.version == 1 and stored.offset > current.offset >= 0:
            # The broker accepts that only if it has none of the events before.
            current = self.known[stored.aggregate_id] = Current(self._aggregate.initial)
        if stored.version <= current.version:
            return  # it is in the snapshot
        if stored.version != current.version + 1:
            raise MillstreamError(
                f"{stored.aggregate_id} is at version {current.version}, but the next event, at "
                f"offset {stored.offset}, has version {stored.version}: events are missing, "
                "because compaction, retention or DeleteRecords has deleted them. Remove the "
                "others, too, and it begins again: millstream excise --topic TOPIC --key "
                f"{shlex.quote(stored.aggregate_id)}"
            )
        try:
            current.state = self._aggregate.apply(current.state, stored.event)
        except UnknownSchema as error:
            raise UnknownSchema(
                f"version {stored.version} of {stored.aggregate_id}, at offset {stored.offset} of "
                f"partition {stored.partition}: {error}"
            ) from None
        current.version, current.offset = stored.version, stored.offset
        self.changed.add(stored.aggregate_id)
        last = current.commands[-1] if current.commands else None
        if last is not None and last.command_id == stored.causation_id:
            current.commands[-1] = last._replace(last_version=stored.version)
        else:
            current.commands.append(Done(stored.causation_id, stored.version, stored.version))
