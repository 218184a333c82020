"""Trials find what breaks under concurrency, and accept what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.events import Aggregate, Event
from millstream.events.trial import try_concurrently
from tests.drawing import draws
from tests.events.seats import Command, Seat, claim, decide, evolve, give_back, seat

people = st.sampled_from(["ada", "bob", "cy"])
one = st.builds(Command, st.sampled_from(["claim", "give back"]), people)
commands = st.lists(st.tuples(st.sampled_from(["1", "2"]), one), max_size=6)


@given(st.integers(0, 10**6), commands)
@settings(max_examples=draws(50), deadline=None)
def test_any_order_of_commands_keeps_a_seat_with_one_holder(
    seed: int, offered: list[tuple[str, Command]]
) -> None:
    trial = try_concurrently(seat, offered, seed=seed, invariant=lambda it: it.sold >= 0)
    assert len(trial.accepted) + len(trial.refused) == len(offered)
    for number in ("1", "2"):
        sold = sum(it.event.type == "claimed" for it in trial.events if it.aggregate_id == number)
        assert sold == trial.states.get(number, Seat()).sold


@pytest.mark.parametrize("seed", range(20))
def test_one_of_many_wins(seed: int) -> None:
    trial = try_concurrently(seat, [("1", claim(f"p{number}")) for number in range(10)], seed=seed)
    assert len(trial.accepted) == 1
    assert len(trial.refused) == 9


def failures(aggregate: Aggregate[Seat, Command], **options: object) -> set[str]:
    found = set()
    offered = [("1", claim("ada"))] + [("1", give_back("ada")), ("1", claim("ada"))] * 2
    for seed in range(100):
        try:
            try_concurrently(aggregate, offered, seed=seed, **options)  # type: ignore[arg-type]
        except AssertionError as error:
            found.add(str(error).splitlines()[0])
    return found


def test_trial_finds_a_broken_invariant() -> None:
    found = failures(seat, invariant=lambda it: it.sold < 2)
    assert any(message.startswith("the invariant does not hold") for message in found)


def test_trial_finds_functions_with_side_effects() -> None:
    class Mutable:
        def __init__(self) -> None:
            self.events: list[str] = []

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Mutable) and other.events == self.events

        def __hash__(self) -> int:
            return 0

    def change(state: Mutable, event: Event) -> Mutable:
        state.events.append(event.type)
        return state

    mutable = Aggregate("m", Mutable(), lambda state, command: [Event("a")], change)
    with pytest.raises(AssertionError, match="evolve has changed its arguments"):
        try_concurrently(mutable, [("1", "x"), ("1", "y")])


def test_trial_finds_an_evolve_that_is_not_a_function() -> None:
    numbers = iter(range(1000))
    odd = replace(seat, evolve=lambda state, event: Seat(None, next(numbers)))
    assert failures(odd) == {"evolve has returned two different states"}


def test_trial_runs_the_functions_of_the_aggregate() -> None:
    assert seat.decide is decide
    assert seat.evolve is evolve
