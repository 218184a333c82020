"""Aggregates as pure functions. Events are facts: only a command can be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from millstream.errors import MillstreamError
from millstream.events.event import Event

State = TypeVar("State")
Command = TypeVar("Command")

UPCASTS_MAX = 1000  # of one event: more is a circle


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command is not valid in the present state."""

    reason: str


Decision: TypeAlias = Sequence[Event] | Refusal
Upcaster: TypeAlias = Callable[[Event], Event]


@dataclass(frozen=True, slots=True)
class Upcasters:
    """Functions that make an event of a newer schema from an older one, by type and schema."""

    steps: Mapping[tuple[str, int], Upcaster] = field(default_factory=dict)

    def upcast(self, event: Event) -> Event:
        """The event in its newest form. The log stays as it is."""
        for _ in range(UPCASTS_MAX):
            step = self.steps.get((event.type, event.schema))
            if step is None:
                return event
            event = step(event)
        raise MillstreamError(
            f"the upcasters of {event.type} form a circle: schema {event.schema} comes again"
        )


@dataclass(frozen=True)  # no slots: `Aggregate[State, Command](...)` sets an attribute
class Aggregate(Generic[State, Command]):
    """A state that events change, and the function that decides which commands are valid in it.

        seat = Aggregate("seat", FREE, decide, evolve)

    `decide(state, command)` returns the events of a valid command, or a `Refusal`.
    `evolve(state, event)` returns the state after an event. Both are pure functions. `version` is
    that of `evolve` and of the state's form: a snapshot of another version is not used.
    """

    name: str
    initial: State
    decide: Callable[[State, Command], Decision]
    evolve: Callable[[State, Event], State]
    version: int = 1
    upcasters: Upcasters = field(default_factory=Upcasters)

    def apply(self, state: State, event: Event) -> State:
        """The state after an event of any schema."""
        return self.evolve(state, self.upcasters.upcast(event))

    def replay(self, events: Iterable[Event], state: State | None = None) -> State:
        """The state after these events, from the initial or a given one."""
        current = self.initial if state is None else state
        for event in events:
            current = self.apply(current, event)
        return current
