"""Event sourcing: many processes claim the same seats, and each seat is sold once.

    python examples/seats.py

Each process decides on the state that it has read, and appends its events under the condition that
nobody else has appended since. The broker refuses all but the first, and the others decide again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context

from millstream.broker.embedded import Broker
from millstream.events import Accepted, Aggregate, CommandHandler, Event, EventLog, Refusal

TOPIC = "seats"
SEATS = ["12a", "12b", "12c"]
PEOPLE = 6


@dataclass(frozen=True)
class Seat:
    holder: str | None = None


@dataclass(frozen=True)
class Claim:
    person: str


def decide(seat: Seat, command: Claim) -> list[Event] | Refusal:
    """A seat that is taken cannot be claimed."""
    if seat.holder is not None:
        return Refusal(f"taken by {seat.holder}")
    return [Event("claimed", {"by": command.person})]


def evolve(seat: Seat, event: Event) -> Seat:
    """Events are facts: nothing is checked."""
    return Seat(event.data["by"])


seat = Aggregate("seat", Seat(), decide, evolve)


def claim_all(bootstrap_servers: str, person: str) -> list[tuple[str, str, str]]:
    """Claim every seat; returns (seat, person, outcome)."""
    outcomes = []
    with EventLog(bootstrap_servers, TOPIC) as log:
        handler = CommandHandler(log, seat)
        for number in SEATS:
            outcome = handler.handle(number, Claim(person))
            accepted = isinstance(outcome, Accepted)
            outcomes.append((number, person, "got it" if accepted else outcome.reason))
    return outcomes


def main() -> None:
    """Start a broker, let the people claim, and print who has which seat."""
    with Broker.start() as broker:
        with EventLog(broker.bootstrap_servers, TOPIC) as log:
            log.create()
        people = [f"person {number}" for number in range(PEOPLE)]
        with get_context("spawn").Pool(PEOPLE) as pool:
            found: Sequence[list[tuple[str, str, str]]] = pool.starmap(
                claim_all, [(broker.bootstrap_servers, person) for person in people]
            )
        outcomes = [outcome for each in found for outcome in each]
        sold = Counter(number for number, _, outcome in outcomes if outcome == "got it")
        with EventLog(broker.bootstrap_servers, TOPIC) as log:
            handler = CommandHandler(log, seat)
            for number in SEATS:
                print(f"seat {number}: {handler.load(number).state.holder}, sold {sold[number]} x")
        refused = len(outcomes) - sold.total()
        print(f"{sold.total()} claims accepted, {refused} refused")
        if any(sold[number] != 1 for number in SEATS):
            sys.exit("a seat was not sold exactly once")


if __name__ == "__main__":
    main()
