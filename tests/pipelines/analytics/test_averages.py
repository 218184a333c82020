"""Weighted averages against their definition, event by event."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.analytics import averages, smooth
from millstream.pipelines.analytics.averages import Averages, Smoothing, Steps, run_steps
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws
from tests.pipelines.analytics.events import EVENTS, Stage
from tests.pipelines.windows.streams import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HALF_LIFE_US = 10
FORGET_US = 55
SILENCE_US = 40  # of four half-lives, which may pass until events are counted anew
MIN_COUNT = 2
THRESHOLD = 2.0
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("_smoothed", pa.float64()),
        ("number", pa.int64()),
    ]
)


class Event(NamedTuple):
    user: str | None
    time_us: int
    value: float | None
    number: int = 0


VALUES = st.none() | st.just(math.inf) | st.integers(-50, 50).map(lambda it: it / 4)
DRAWN = st.builds(Event, st.sampled_from(["ann", None]), st.integers(0, 90), VALUES)
BATCHES = st.lists(st.tuples(st.lists(DRAWN, max_size=8), st.integers(0, 30)), max_size=7)


def columns(events: Sequence[Event]) -> dict[str, pa.RecordBatch]:
    arrays = [
        pa.array([it.user for it in events], pa.string()),
        pa.array([it.time_us for it in events], pa.int64()).cast(SCHEMA.field("time").type),
        pa.array([it.value for it in events], pa.float64()),
        pa.array([it.number for it in events], pa.int64()),
    ]
    return {"events": pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)}


def operator(lateness_us: int = 0, *, at_arrival: bool = False) -> Smoothing:
    settings = (HALF_LIFE_US, FORGET_US, lateness_us, THRESHOLD, MIN_COUNT)
    return Smoothing(SCHEMA, ["user"], "time", *settings, at_arrival=at_arrival)


def numbered(batches: Sequence[tuple[list[Event], int]]) -> list[tuple[list[Event], int]]:
    """Each event with a number of its own, so that it is found again."""
    numbers = iter(range(10_000))
    return [([it._replace(number=next(numbers)) for it in own], step) for own, step in batches]


def run(
    batches: Sequence[tuple[list[Event], int]], lateness_us: int
) -> tuple[dict[int, dict[str, Any]], list[Event]]:
    """The results by number, and the events that were on time."""
    trial = Trial(operator(lateness_us), buckets=2)
    found: list[dict[str, Any]] = []
    on_time: list[Event] = []
    watermark_us = 0
    for events, step_us in batches:
        found += trial.feed(columns(events), watermark_us).to_pylist()
        on_time += [it for it in events if it.time_us > watermark_us - lateness_us]
        watermark_us += step_us
    found += trial.finish().to_pylist()
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)
    return {it["number"]: it for it in found}, on_time


def naive(before: Sequence[Event], now_us: int) -> tuple[float, float] | None:
    """Mean and deviation of events that came without a pause, by definition."""
    if not before:
        return None
    weights = [2 ** (-(now_us - it.time_us) / HALF_LIFE_US) for it in before]
    values = [it.value or 0.0 for it in before]
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    squares = sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
    return mean, math.sqrt(squares / sum(weights))


def remembered(chain: Sequence[Event], before_us: int) -> list[Event]:
    """Those of sorted events after which there was no longer pause, up to a time."""
    kept: list[Event] = []
    for it in chain:
        kept = [*kept, it] if kept and it.time_us - kept[-1].time_us <= FORGET_US else [it]
    return kept if kept and before_us - kept[-1].time_us <= FORGET_US else []


def counted(chain: Sequence[Event], before_us: int) -> int:
    """How many of these there are since the last long silence."""
    times_us = [*(it.time_us for it in chain), before_us]
    gaps_us = [later - earlier for earlier, later in pairwise(times_us)]
    silences = [place for place, it in enumerate(gaps_us, start=1) if it > SILENCE_US]
    return len(chain) - max(silences, default=0)


NEAR = st.builds(Event, st.sampled_from(["ann", None]), st.integers(0, 50), st.integers(-50, 50))


@settings(max_examples=draws(60))
@given(st.lists(st.lists(NEAR, max_size=6, unique_by=lambda it: it[:2]), max_size=6))
def test_result_at_arrival_is_of_all_that_has_come(drawn: list[list[Event]]) -> None:
    """Once, in the batch of the event, however old it is. Within a batch, events are averaged in
    the order of their times."""
    trial = Trial(operator(100, at_arrival=True), buckets=2)
    known: list[Event] = []
    for own, _ in numbered([(it, 0) for it in drawn]):
        found = {it["number"]: it for it in trial.feed(columns(own), 1).to_pylist()}
        assert found.keys() == {it.number for it in own}
        for it in sorted(own, key=lambda it: it.time_us):
            known.append(it)
            row = found[it.number]
            assert row["_kind"] == "arrival"
            same = [them for them in known if them.user == it.user]
            expected = naive(same, it.time_us)
            assert expected is not None
            assert row["average"] == pytest.approx(expected[0], abs=1e-9)
            before = naive(same[:-1], it.time_us)
            assert (row["expected"] is None) == (before is None)
            if before is not None:
                assert row["expected"] == pytest.approx(before[0], abs=1e-9)
    assert trial.finish().num_rows == 0


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([0, 15]))
def test_averages_are_those_of_their_definition(
    drawn: list[tuple[list[Event], int]], lateness_us: int
) -> None:
    batches = numbered(drawn)
    found, on_time = run(batches, lateness_us)
    assert len(found) == sum(len(own) for own, _ in batches)
    assert {it["number"] for it in found.values() if it["_kind"] == "final"} == {
        it.number for it in on_time
    }
    for user in {it.user for it in on_time}:
        own = [it for it in on_time if it.user == user and it.value is not None]
        own = sorted((it for it in own if math.isfinite(it.value or 0)), key=lambda it: it.time_us)
        for it in own:
            row = found[it.number]
            at_once = [other for other in own if other.time_us == it.time_us]
            if len(at_once) > 1:
                continue  # their order is that of their content, which the next test holds
            before = remembered([x for x in own if x.time_us < it.time_us], it.time_us)
            expected, after = naive(before, it.time_us), naive([*before, it], it.time_us)
            assert after is not None
            assert row["average"] == pytest.approx(after[0], abs=1e-9)
            if expected is None:
                assert (row["expected"], row["z"], row["is_anomaly"]) == (None, None, False)
                continue
            mean, deviation = expected
            assert row["expected"] == pytest.approx(mean, abs=1e-9)
            if deviation > 1e-6:
                z = ((it.value or 0) - mean) / deviation
                assert row["z"] == pytest.approx(z, rel=1e-6, abs=1e-6)
                if abs(abs(z) - THRESHOLD) > 1e-6:
                    is_far = abs(z) > THRESHOLD
                    is_usual = counted(before, it.time_us) >= MIN_COUNT
                    assert row["is_anomaly"] == (is_far and is_usual)


@settings(max_examples=draws(40))
@given(BATCHES, st.randoms(use_true_random=False))
def test_results_are_the_same_to_the_last_bit_however_the_stream_is_cut(
    drawn: list[tuple[list[Event], int]], rng: random.Random
) -> None:
    everything = [it for own, _ in numbered(drawn) for it in own]
    at_once, _ = run([(rng.sample(everything, len(everything)), 0)], 1000)
    cut, _ = run([([it], rng.choice([0, 3])) for it in everything], 1000)
    assert repr(sorted(at_once.items())) == repr(sorted(cut.items()))


def test_keys_that_go_together_and_alone_are_computed_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 40, 50)
    starts = np.cumsum(lengths) - lengths
    count = int(lengths.sum())
    keeps = (rng.random(count) > 0.1).astype(np.float64)
    counts = (rng.random(count) > 0.1) * keeps
    steps = Steps(starts, rng.normal(1e6, 1, count), rng.random(count) * keeps, keeps, counts)
    begun = Averages(*(rng.random(50) for _ in range(4)))
    alone_or_not = []
    for few in (0, 5, 1000):
        monkeypatch.setattr(averages, "_FEW_KEYS", few)
        alone_or_not.append(np.stack([*run_steps(steps, begun)[0], *run_steps(steps, begun)[1]]))
    assert (alone_or_not[0] == alone_or_not[1]).all()
    assert (alone_or_not[0] == alone_or_not[2]).all()


def test_spike_in_a_steady_series_is_an_anomaly() -> None:
    steady = [Event("ann", at, 5.0, at) for at in range(20)]
    found, _ = run([([*steady, Event("ann", 20, 5.5, 20), Event("ann", 21, 90.0, 21)], 0)], 0)
    assert [number for number, row in sorted(found.items()) if row["is_anomaly"]] == [20, 21]
    assert found[20]["z"] is None, "those before were all alike"
    assert found[21]["z"] > 100


def smoothed(series: Sequence[tuple[int, float]], forget_us: int) -> list[dict[str, Any]]:
    """The results of one key, in the order of time."""
    trial = Trial(Smoothing(SCHEMA, ["user"], "time", HALF_LIFE_US, forget_us, 0, 3.0, 10))
    events = [Event("ann", time_us, value) for time_us, value in series]
    found = [trial.feed(columns(events)), trial.finish()]
    rows = [row for it in found for row in it.to_pylist()]
    return sorted(rows, key=lambda it: it["time"])


@pytest.mark.parametrize("silence", [5, 8, 12, 20, 30])
def test_first_events_after_a_silence_are_no_anomalies(silence: int) -> None:
    rng = random.Random(silence)
    before = [(at, 20 + rng.gauss(0, 1)) for at in range(100)]
    begin_us = 100 + silence * HALF_LIFE_US
    after = [(begin_us + at, 20 + rng.gauss(0, 1)) for at in range(9)]
    spike = (begin_us + 60, 500.0)
    rows = smoothed([*before, *after, (begin_us + 30, 20.0), (begin_us + 31, 20.5), spike], 320)
    assert not any(it["is_anomaly"] for it in rows[100:-1])
    assert all(it["expected"] is not None for it in rows[100:]), "averages go on"
    assert rows[-1]["is_anomaly"], "ten events are enough again"


def test_silence_of_four_half_lives_is_none() -> None:
    steady = [(at, float(at % 2)) for at in range(10)]
    assert smoothed([*steady, (9 + SILENCE_US, 50.0)], 320)[-1]["is_anomaly"]
    assert not smoothed([*steady, (10 + SILENCE_US, 50.0)], 320)[-1]["is_anomaly"]


def test_rounding_makes_no_spread_negative() -> None:
    """After so long that nothing is left of the spread before, the new one may be rounded down."""
    rng = random.Random(1)
    pairs = [(rng.uniform(0, 100), rng.uniform(0, 100)) for _ in range(3000)]
    one, two = next((a, b) for a, b in pairs if (b - a) * (b - (a + (b - a))) < 0)
    late_us = 12 + 60 * HALF_LIFE_US
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = smoothed([*((at, one) for at in range(12)), (late_us, two), (late_us + 1, 7.0)], 999)
    assert rows[-1]["z"] is None, "those before do not differ"


def test_state_shows_how_long_it_is_kept() -> None:
    minute_us = 60_000_000
    told = Smoothing(SCHEMA, ["user"], "time", minute_us, 32 * minute_us, 0, 3.0, 10).kept()
    assert told == {
        "waiting": "until the watermark is past them",
        "averages": "until the last event of their key is 32 minutes behind the watermark",
    }
    late = Smoothing(SCHEMA, ["user"], "time", minute_us, 32 * minute_us, minute_us, 3.0, 10).kept()
    assert late == {
        "waiting": "until they are 1 minute behind the watermark",
        "averages": "until the last event of their key is 33 minutes behind the watermark",
    }


def test_stream_is_averaged_as_a_batch_is(stage: Stage) -> None:
    rows = stage.results(
        lambda it: it.transform(
            smooth,
            "amount",
            key="user",
            time="time",
            half_life="1 minute",
            threshold=2,
            min_count=3,
            emit="final",
        )
    )
    assert len(rows) == len(EVENTS)
    assert any(it.is_anomaly for it in rows)
    first = min((it for it in rows if it.user == "ann" and it.amount), key=lambda it: it.time)
    assert (first.average, first.expected) == (first.amount, None)
    assert seconds_of(first.time) >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"half_life": "0 seconds"}, "half_life '0 seconds' is too short"),
        ({"threshold": -1}, "threshold=-1: so many standard deviations"),
        ({"min_count": 0}, "min_count=0: it must be an integer of at least 1"),
        ({"value": "user"}, "an average is of a number, and user is string"),
        ({"time": "user"}, "convert it with to_timestamp(user)"),
        ({"stragglers": "correct"}, "each result is emitted once here"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    usual = {"key": "user", "time": "time", "value": "amount", "half_life": "1 minute"}
    with pytest.raises(ConfigError) as refused:
        smooth(frame, **(usual | arguments))
    assert message in str(refused.value)
