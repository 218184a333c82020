"""Handles commands: reads, decides, and appends if nobody else was faster.

Any number of handlers, in any processes, may handle commands of the same aggregates: of two that
decide on the same version, one is accepted by the broker, and the other one reads the new event and
decides again.

A command with the id of an earlier one (`Origin`) is carried out once: also after a crash between
the append and the answer, as long as it is among the last commands of its aggregate.

If the leader of a partition moves between an append and its answer, the append is sent again, and
may conflict with itself. The handler then finds its own events among those that it reads next.

States are of one log. If the topic is deleted and created again, or loses events that the states
contain, commands and reads raise `LogChanged`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from millstream.errors import MillstreamError
from millstream.events.aggregate import Aggregate, Command, Refusal, State
from millstream.events.event import Event, Origin, StoredEvent
from millstream.events.log import Conflict, EventLog, LogChanged, RecordsDeleted
from millstream.events.snapshots import Snapshots
from millstream.events.view import Current, View

ATTEMPTS_MAX = 100
BACKOFF_SECONDS_MAX = 0.05


class TooManyConflicts(MillstreamError):
    """The broker refused every attempt to append. Handle the command again later."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a command did. `events` is empty if it was carried out before, or has no effect."""

    version: int
    events: tuple[StoredEvent, ...] = ()
    was_repeated: bool = False


class CommandHandler(Generic[State, Command]):
    """Handles commands: reads the aggregate, decides, and appends if no other handler was faster.

        handler = CommandHandler(log, aggregate)
        outcome = handler.handle("seat-12a", Claim("ada"))     # Accepted or Refusal

    The topic must have conditional append, and keep its events: without them, an aggregate begins
    again. With `may_lose_events`, it may have retention. Any number of handlers, in any processes,
    may handle commands of the same aggregates; each handler is used by one thread at a time.
    """

    def __init__(
        self,
        log: EventLog,
        aggregate: Aggregate[State, Command],
        *,
        snapshots: Snapshots[State] | None = None,
        may_lose_events: bool = False,
        attempts_max: int = ATTEMPTS_MAX,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        log.check_conditional(may_lose_events=may_lose_events)
        self._log = log
        self._aggregate = aggregate
        self._snapshots = snapshots
        self._may_lose_events = may_lose_events
        self._attempts_max = attempts_max
        self._sleep = sleep
        self._views: dict[int, View[State]] = {}

    def handle(
        self, aggregate_id: str, command: Command, origin: Origin | None = None
    ) -> Accepted | Refusal:
        """Raises `TooManyConflicts`, or `LogChanged` if the states are not those of the log."""
        origin = origin or Origin()
        partition = self._log.partition_of(aggregate_id)
        view, is_fresh = self._view(partition, aggregate_id)
        refusals = 0
        while True:
            current = view.get(aggregate_id)
            done = current.find(origin.command_id)
            if done is not None:
                return Accepted(done.last_version, was_repeated=True)
            decision = self._aggregate.decision(current.state, command)
            if isinstance(decision, Refusal) or not decision:
                if is_fresh:
                    return decision if isinstance(decision, Refusal) else Accepted(current.version)
                self._refresh(view, partition, aggregate_id)
            else:
                events = stored_events(aggregate_id, current.version, decision, origin)
                try:
                    offset = self._log.append(partition, events)
                    return self._accepted(view, events, partition, offset)
                except Conflict as error:
                    refusal = error
                self._sleep(random.uniform(0, min(0.001 * refusals, BACKOFF_SECONDS_MAX)))
                found = self._refresh(view, partition, aggregate_id, origin)
                if found and found[0].version == events[0].version:
                    return Accepted(found[-1].version, tuple(found))
                self._check_not_deleted(view, aggregate_id, events[0].version, refusal)
                refusals += 1
                if refusals >= self._attempts_max:
                    times = "once" if refusals == 1 else f"{refusals} times"
                    raise TooManyConflicts(
                        f"{aggregate_id}: the broker refused the events {times}: {refusal}"
                    )
            is_fresh = True

    def _check_not_deleted(
        self, view: View[State], aggregate_id: str, version: int, refusal: Conflict
    ) -> None:
        """Raise `LogChanged` if the broker has refused a version because it has none of the events
        before it; with `may_lose_events`, let the aggregate begin again."""
        current = view.get(aggregate_id)
        if current.version >= version or current.version == 0:
            return  # another command was accepted
        partition = self._log.partition_of(aggregate_id)
        start = self._log.start_offset(partition)
        if current.offset >= start and self._log.has_record(partition, current.offset):
            return  # a transaction may hold the aggregate
        if self._may_lose_events:
            view.forget(aggregate_id)
            return
        how = (
            f"excision: {self._log.topic}-{partition} has no record there"
            if current.offset >= start
            else f"retention or DeleteRecords: {self._log.topic}-{partition} starts at offset "
            f"{start}"
        )
        raise LogChanged(
            f"{aggregate_id}: its events up to version {current.version}, at offset "
            f"{current.offset}, were deleted by {how}. {self._cure()} (the broker: {refusal})"
        )

    def _cure(self) -> str:
        """What to do when events were deleted that the states contain, or should."""
        begin = "begin with a new handler: aggregates whose last event was deleted begin again"
        if self._snapshots is None:
            return begin.capitalize()
        return f"Delete topic {self._snapshots.topic}, and {begin}"

    def _accepted(
        self, view: View[State], events: list[StoredEvent], partition: int, offset: int
    ) -> Accepted:
        stored = [
            replace(event, partition=partition, offset=offset + index)
            for index, event in enumerate(events)
        ]
        for event in stored:
            view.apply(event)
        if view.position == offset:  # otherwise events of others are in between
            view.position = offset + len(stored)
        return Accepted(stored[-1].version, tuple(stored))

    def load(self, aggregate_id: str) -> Current[State]:
        """The present state, with its version. It contains every event that was acknowledged
        before the call."""
        partition = self._log.partition_of(aggregate_id)
        view, is_fresh = self._view(partition, aggregate_id)
        if not is_fresh:
            self._refresh(view, partition, aggregate_id)
        return view.get(aggregate_id)

    def state_at(
        self, aggregate_id: str, *, offset: int | None = None, timestamp_ms: int | None = None
    ) -> Current[State]:
        """The state as it was: with the events before an offset, or those up to a time. Reads the
        partition from its start."""
        partition = self._log.partition_of(aggregate_id)
        end = self._log.end_offset(partition)
        view = View(self._aggregate)
        self._log.check_unchanged()
        start = self._log.start_offset(partition)
        for stored in self._log.events(partition, start, end if offset is None else offset):
            if stored.aggregate_id == aggregate_id and (
                timestamp_ms is None or stored.timestamp_ms <= timestamp_ms
            ):
                view.apply(stored)
        return view.get(aggregate_id)

    def save_snapshots(self) -> None:
        """Save the states of all partitions that were read, so that the next start reads less."""
        if self._snapshots is not None:
            for partition, view in self._views.items():
                self._snapshots.save(partition, view)

    def _view(self, partition: int, aggregate_id: str) -> tuple[View[State], bool]:
        """The view, and whether it was just read."""
        found = self._views.get(partition)
        if found is not None:
            return found, False
        view: View[State] | None = None
        if self._snapshots is not None:
            view = self._snapshots.load(partition)
        if view is None:
            view = View(self._aggregate, position=self._log.start_offset(partition))
        self._refresh(view, partition, aggregate_id)
        self._views[partition] = view
        return view, True

    def _refresh(
        self,
        view: View[State],
        partition: int,
        aggregate_id: str,
        origin: Origin | None = None,
    ) -> list[StoredEvent]:
        """Read all that was acknowledged before this call. Returns the events of a command."""
        found = self._catch_up(view, partition, origin)
        if self._may_lose_events and view.get(aggregate_id).offset < self._log.start_offset(
            partition
        ):
            view.forget(aggregate_id)  # as the broker does
        return found

    def _catch_up(
        self, view: View[State], partition: int, origin: Origin | None
    ) -> list[StoredEvent]:
        found = []
        try:
            for events, next_offset in self._log.events_since(partition, view.position):
                for stored in events:
                    self._check_place(view, stored)
                    view.apply(stored)
                    if origin is not None and stored.causation_id == origin.command_id:
                        found.append(stored)
                view.position = next_offset
        except RecordsDeleted as error:
            if not self._may_lose_events:
                raise RecordsDeleted(f"{error}. {self._cure()}") from None
            view.position = self._log.start_offset(partition)
            found += self._catch_up(view, partition, origin)
        return found

    def _check_place(self, view: View[State], stored: StoredEvent) -> None:
        """Raise `LogChanged` if no handler would look for the aggregate in this partition."""
        if stored.aggregate_id in view.known:
            return
        wanted = self._log.partition_of(stored.aggregate_id)
        if wanted != stored.partition:
            raise LogChanged(
                f"{stored.aggregate_id} has an event at offset {stored.offset} of partition "
                f"{stored.partition} of {self._log.topic}, but belongs in partition {wanted}: "
                "partitions were added, or another program chooses them by another hash than "
                "murmur2. Copy the events, in order, to a new topic, with partitions as "
                "EventLog.partition_of has them"
            )


def stored_events(
    aggregate_id: str, version: int, events: Sequence[Event], origin: Origin
) -> list[StoredEvent]:
    """The events of a command that was decided on a version."""
    return [
        StoredEvent(
            aggregate_id,
            version + 1 + index,
            event,
            origin.event_id(index),
            origin.command_id,
            origin.correlation_id,
        )
        for index, event in enumerate(events)
    ]
