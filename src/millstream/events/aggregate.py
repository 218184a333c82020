"""Aggregates as pure functions. Events are facts: only a command can be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from millstream.errors import ConfigError, MillstreamError
from millstream.events.event import Event

State = TypeVar("State")
Command = TypeVar("Command")

UPCASTS_MAX = 1000  # of one event: more is a circle


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command is not valid in the present state."""

    reason: str


Decision: TypeAlias = Iterable[Event] | Refusal
Upcaster: TypeAlias = Callable[[Event], Event]


class UnknownSchema(MillstreamError):
    """An event of a schema that `evolve` is not for, and that no upcaster begins with."""


@dataclass(frozen=True, slots=True)
class Upcasters:
    """Functions that make an event of the next schema from an older one, by type and schema.

    A step returns the event with the next schema, or one of another type. `newest` has the newest
    schema of each type; for a type that has steps, it is the one that the last step makes. Events
    of other types are not checked. Raises `ConfigError` if a step is missing.
    """

    steps: Mapping[tuple[str, int], Upcaster] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        newest = dict(self.newest)
        for name in {name for name, _ in self.steps}:
            schemas = {schema for its, schema in self.steps if its == name}
            last = newest.setdefault(name, max(schemas) + 1)
            if schemas != set(range(min(schemas), last)):
                raise ConfigError(
                    f"the upcasters of {name} are from the schemas "
                    f"{', '.join(map(str, sorted(schemas)))}: one from each schema from "
                    f"{min(schemas)} to {last - 1} is needed, to make the newest, {last}"
                )
        object.__setattr__(self, "newest", newest)

    def upcast(self, event: Event) -> Event:
        """The event in its newest form. The log stays as it is. Raises `UnknownSchema`."""
        given = event
        for _ in range(UPCASTS_MAX):
            step = self.steps.get((event.type, event.schema))
            if step is None:
                self._check_newest(event)
                return event
            made = step(event)
            if made.type == event.type and made.schema != event.schema + 1:
                raise MillstreamError(
                    f"the upcaster of {event.type} from schema {event.schema} has returned schema "
                    f"{made.schema}: it must return schema {event.schema + 1}"
                )
            event = made
        raise MillstreamError(
            f"the upcasters of {given.type} form a circle: type {event.type} comes again"
        )

    def _check_newest(self, event: Event) -> None:
        newest = self.newest.get(event.type, event.schema)
        if event.schema > newest:
            raise UnknownSchema(
                f"event {event.type} has schema {event.schema}, but {newest} is the newest that "
                "this code has: deploy the code that knows it, or name it in Upcasters(newest=...)"
            )
        if event.schema < newest:
            raise UnknownSchema(
                f"event {event.type} has schema {event.schema}, and no upcaster makes the newest, "
                f"{newest}, of it: add a step from schema {event.schema}"
            )


@dataclass(frozen=True)  # no slots: `Aggregate[State, Command](...)` sets an attribute
class Aggregate(Generic[State, Command]):
    """A state that events change, and the function that decides which commands are valid in it.

        seat = Aggregate("seat", FREE, decide, evolve)

    `decide(state, command)` returns the events of a valid command, or a `Refusal`: a list or
    another iterable, empty for a command without an effect. A function that yields its events may
    return a `Refusal` instead. None is an error, because a `return` was forgotten.
    `evolve(state, event)` returns the state after an event. Both are pure functions. `version` is
    that of `evolve` and of the state's form: a snapshot of another version is not used.
    """

    name: str
    initial: State
    decide: Callable[[State, Command], Decision]
    evolve: Callable[[State, Event], State]
    version: int = 1
    upcasters: Upcasters = field(default_factory=Upcasters)

    def decision(self, state: State, command: Command) -> tuple[Event, ...] | Refusal:
        """What `decide` returns, checked: events that could not be read must not be written."""
        decision = self.decide(state, command)
        if isinstance(decision, Refusal):
            return decision
        wanted = "it must return the events, an empty list if there are none, or a Refusal"
        if not isinstance(decision, Iterable):
            raise MillstreamError(
                f"decide of {self.name} has returned {_described(decision)}: {wanted}"
            )
        events, returned = _drained(decision)
        if isinstance(returned, Refusal):
            return returned
        if returned is not None:
            raise MillstreamError(
                f"decide of {self.name} yields its events, and has returned "
                f"{_described(returned)}: yield that, too; it may return only a Refusal"
            )
        for event in events:
            if not isinstance(event, Event):
                raise MillstreamError(
                    f"decide of {self.name} has returned {_described(event)} among its events: "
                    f"{wanted}"
                )
            self.upcasters.upcast(event)
        return events

    def apply(self, state: State, event: Event) -> State:
        """The state after an event of any schema."""
        return self.evolve(state, self.upcasters.upcast(event))

    def replay(self, events: Iterable[Event], state: State | None = None) -> State:
        """The state after these events, from the initial or a given one."""
        current = self.initial if state is None else state
        for event in events:
            current = self.apply(current, event)
        return current


def _drained(decision: Any) -> tuple[tuple[Event, ...], object]:
    """The events, and what a generator returns after them."""
    returned: object = None

    def drain() -> Iterator[Event]:
        nonlocal returned
        returned = yield from decision

    return tuple(drain()), returned


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
