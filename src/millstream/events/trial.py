"""For the tests of aggregates: concurrent commands in random order, without a broker.

    def test_seat_is_sold_once():
        trial = try_concurrently(seat, [("12a", Claim("ada")), ("12a", Claim("bob"))], seed=7)
        assert len(trial.accepted) == 1

Each command is handled by a client of its own, step by step: read, decide, append. The steps of all
clients are interleaved at random. Some answers are lost, and the command is sent again with the
same id by a client that has forgotten everything. `try_concurrently` itself checks that

- `invariant` holds for the state after each event;
- no command is accepted twice;
- `decide` and `evolve` change none of their arguments;
- replaying the events of an aggregate gives the state that its clients have seen.

Call it with many seeds, or with Hypothesis: `@given(st.integers())`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic

from millstream.events.aggregate import Aggregate, Command, Refusal, State
from millstream.events.event import Event, Origin, StoredEvent
from millstream.events.handler import Accepted, stored_events
from millstream.events.view import View

ATTEMPTS_MAX = 10_000


@dataclass
class Trial(Generic[State]):
    """What became of the commands, by their index."""

    events: list[StoredEvent] = field(default_factory=list)
    accepted: dict[int, Accepted] = field(default_factory=dict)
    refused: dict[int, Refusal] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)


def try_concurrently(
    aggregate: Aggregate[State, Command],
    commands: Sequence[tuple[str, Command]],
    *,
    invariant: Callable[[State], bool] = lambda state: True,
    seed: int = 0,
    lost_answers: float = 0.2,
) -> Trial[State]:
    """See the module. Raises `AssertionError`."""
    random = Random(seed)
    trial: Trial[State] = Trial()
    strict = _without_side_effects(aggregate)
    waiting = {
        index: _client(strict, trial, index, aggregate_id, command, Origin(f"command {index}"))
        for index, (aggregate_id, command) in enumerate(commands)
    }
    while waiting:
        index = random.choice(sorted(waiting))
        try:
            next(waiting[index])
        except StopIteration:
            del waiting[index]
            if random.random() < lost_answers and (index in trial.accepted):
                aggregate_id, command = commands[index]
                origin = Origin(f"command {index}")
                waiting[index] = _client(strict, trial, index, aggregate_id, command, origin)
    _check(strict, trial, invariant)
    return trial


def _client(
    aggregate: Aggregate[State, Any],
    trial: Trial[State],
    index: int,
    aggregate_id: str,
    command: Any,
    origin: Origin,
) -> Iterator[None]:
    """The steps of handling one command; a `yield` lets others work."""
    for _ in range(ATTEMPTS_MAX):
        view = View(aggregate)
        for stored in trial.events:
            view.apply(stored)
        current = view.get(aggregate_id)
        yield
        done = current.find(origin.command_id)
        if done is not None:
            trial.accepted[index] = Accepted(done.last_version, was_repeated=True)
            return
        decision = aggregate.decision(current.state, command)
        yield
        if isinstance(decision, Refusal):
            trial.refused[index] = decision
            return
        if not decision:
            trial.accepted[index] = Accepted(current.version)
            return
        last = [it.version for it in trial.events if it.aggregate_id == aggregate_id]
        if max(last, default=0) == current.version:
            new = stored_events(aggregate_id, current.version, decision, origin)
            trial.events.extend(new)
            trial.accepted[index] = Accepted(new[-1].version, tuple(new))
            return
    raise AssertionError(f"command {index} did not end after {ATTEMPTS_MAX} attempts")


def _check(
    aggregate: Aggregate[State, Any], trial: Trial[State], invariant: Callable[[State], bool]
) -> None:
    view = View(aggregate)
    ranges: Counter[str] = Counter()
    last_of: dict[str, str] = {}
    for stored in trial.events:
        view.apply(stored)
        state = view.get(stored.aggregate_id).state
        assert invariant(state), f"the invariant does not hold after {stored}: {state}"
        if last_of.get(stored.aggregate_id) != stored.causation_id:
            ranges[stored.causation_id] += 1
        last_of[stored.aggregate_id] = stored.causation_id
    twice = [command_id for command_id, count in ranges.items() if count > 1]
    assert not twice, f"accepted more than once: {twice}"
    trial.states = {key: current.state for key, current in view.known.items()}


def _without_side_effects(aggregate: Aggregate[State, Command]) -> Aggregate[State, Command]:
    def decide(state: State, command: Command) -> Any:
        before = deepcopy((state, command))
        decision = aggregate.decision(state, command)
        assert (state, command) == before, f"decide has changed its arguments: {before}"
        return decision

    def evolve(state: State, event: Event) -> State:
        before = deepcopy((state, event))
        after = aggregate.evolve(state, event)
        assert (state, event) == before, f"evolve has changed its arguments: {before}"
        assert aggregate.evolve(state, event) == after, "evolve has returned two different states"
        return after

    return Aggregate(
        aggregate.name,
        aggregate.initial,
        decide,
        evolve,
        aggregate.version,
        aggregate.upcasters,
    )
