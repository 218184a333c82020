"""Random histories with faults: no invariant is violated, and everything heals."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from millstream.testing.simulation import Outcome, Violation, run
from millstream.testing.simulation.cluster import Parts
from tests.testing.simulation.broken import BROKEN

SEEDS = range(8)
MILLION = 1_000_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Recovery after each crash is worth a warning, but not thousands."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_history_keeps_the_invariants_and_heals(seed: int) -> None:
    outcome = run(seed, faults_ms=6_000)
    assert outcome.ack_count > 20
    assert outcome.election_count > 4


def test_seed_replays_a_history() -> None:
    assert run(3, faults_ms=2_000) == run(3, faults_ms=2_000)


def test_violation_names_the_seed_and_the_last_events() -> None:
    with pytest.raises(Violation) as caught:
        run_many(range(20), BROKEN["fetches what is not flushed"], 2_000)
    first, second, *_, last = str(caught.value).splitlines()
    assert first.startswith("seed ")
    assert second == "the last events:"
    assert last == first


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_million_events_keep_the_invariants() -> None:
    """Also that the histories contain what they are for."""
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    seed = 10_000
    while total["event_count"] < MILLION:
        outcome = run(seed)
        seed += 1
        faults.update(outcome.faults)
        total.update(_numbers(outcome))
    print(f"{seed - 10_000} histories: {dict(total)}, faults: {dict(faults)}")
    assert min(faults.values()) > 5
    assert len(faults) == 16
    assert total["truncation_count"] > 100
    assert total["wipe_count"] > 0


def _numbers(outcome: Outcome) -> dict[str, int]:
    return {name: value for name, value in outcome._asdict().items() if isinstance(value, int)}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("broken", BROKEN)
def test_random_histories_catch_what_is_broken(broken: str) -> None:
    """Without a script; all but those that need a rare coincidence."""
    if broken in ("takes unknown for refused", "zombie controller"):
        pytest.skip("needs its script")
    with pytest.raises(Violation):
        run_many(range(20_000, 20_040), BROKEN[broken], 12_000)


def run_many(seeds: range, parts: Parts, faults_ms: int) -> None:
    for seed in seeds:
        run(seed, parts=parts, faults_ms=faults_ms)
