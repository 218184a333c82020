"""A seat that is claimed and given back: the aggregate of these tests."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.events import Aggregate, Event, Refusal


@dataclass(frozen=True)
class Seat:
    holder: str | None = None
    sold: int = 0


@dataclass(frozen=True)
class Command:
    kind: str
    person: str


def claim(person: str) -> Command:
    return Command("claim", person)


def give_back(person: str) -> Command:
    return Command("give back", person)


def decide(seat: Seat, command: Command) -> list[Event] | Refusal:
    if command.kind == "claim":
        if seat.holder is not None:
            return Refusal(f"taken by {seat.holder}")
        return [
            Event("claimed", {"by": command.person}),
            Event("invoiced", {"to": command.person}),
        ]
    if seat.holder != command.person:
        return Refusal("not yours")
    return [Event("given back")]


def evolve(seat: Seat, event: Event) -> Seat:
    if event.type == "claimed":
        assert seat.holder is None
        return Seat(event.data["by"], seat.sold + 1)
    return Seat(None, seat.sold) if event.type == "given back" else seat


seat = Aggregate("seat", Seat(), decide, evolve)
