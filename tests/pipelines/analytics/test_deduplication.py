"""Deduplication against a loop over rows; and that Spark's own is taken where it suffices."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.analytics import deduplicate
from millstream.pipelines.analytics.deduplication import Deduplication, first_in_time
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws
from tests.pipelines.analytics.events import DELAY, EVENTS, Event, Stage
from tests.pipelines.windows.streams import END, Files, seconds_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WITHIN_US = 10
SCHEMA = pa.schema(
    [("id", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("number", pa.int64())]
)


class Copy(NamedTuple):
    id: str | None
    time_us: int | None
    number: int


COPIES = st.builds(Copy, st.sampled_from(["a", "b", None]), st.integers(0, 60), st.integers(0, 3))
BATCHES = st.lists(st.tuples(st.lists(COPIES, max_size=10), st.integers(0, 20)), max_size=8)


def columns(rows: Sequence[Copy]) -> dict[str, pa.RecordBatch]:
    arrays = [
        pa.array([it.id for it in rows], pa.string()),
        pa.array([it.time_us for it in rows], pa.int64()).cast(SCHEMA.field("time").type),
        pa.array([it.number for it in rows], pa.int64()),
    ]
    return {"events": pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)}


def copies(rows: pa.RecordBatch, kind: str) -> list[Copy]:
    rows = rows.filter(pa.compute.equal(rows["_kind"], kind))
    times = rows["time"].cast(pa.int64()).to_pylist()
    return [
        Copy(*it)
        for it in zip(rows["id"].to_pylist(), times, rows["number"].to_pylist(), strict=True)
    ]


def operator(lateness_us: int = 0) -> Deduplication:
    return Deduplication(SCHEMA, ["id"], "time", WITHIN_US, lateness_us)


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([0, 7]), st.randoms(use_true_random=False))
def test_row_passes_unless_one_near_it_has_passed(
    batches: list[tuple[list[Copy], int]], lateness_us: int, rng: random.Random
) -> None:
    trial, shuffled = (Trial(operator(lateness_us), buckets=2) for _ in range(2))
    passed: list[Copy] = []
    watermark_us = 0
    for rows, step_us in batches:
        found = trial.feed(columns(rows), watermark_us)
        late = [it for it in rows if it.time_us <= watermark_us - lateness_us]  # type: ignore[operator]
        assert Counter(copies(found, "late")) == Counter(late)
        now = []
        for it in sorted(set(rows) - set(late), key=lambda it: it.time_us or 0):
            near = [
                other
                for other in (*passed, *now)
                if other.id == it.id and abs(other.time_us - it.time_us) <= WITHIN_US  # type: ignore[operator]
            ]
            if not near:
                now.append(it)
        key = [(it.id, it.time_us) for it in copies(found, "final")]
        assert Counter(key) == Counter((it.id, it.time_us) for it in now)
        passed += copies(found, "final")
        assert found.num_rows == len(rows)
        again = rng.sample(rows, len(rows))
        replayed = shuffled.feed(columns(again), watermark_us)
        assert Counter(copies(replayed, "final")) == Counter(copies(found, "final")), "on a replay"
        watermark_us += step_us
    trial.finish()
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=40), st.integers(1, 12))
def test_first_ones_are_found_in_strides(rows: list[tuple[int, int]], horizon_us: int) -> None:
    rows.sort()
    expected: list[int] = []
    for place, (code, time_us) in enumerate(rows):
        last = rows[expected[-1]] if expected else None
        if last is None or last[0] != code or time_us - last[1] > horizon_us:
            expected.append(place)
    codes = np.array([it[0] for it in rows], np.int64)
    times = np.array([it[1] for it in rows], np.int64)
    assert list(first_in_time(codes, times, horizon_us)) == expected


def test_keys_are_kept_for_horizon_and_lateness() -> None:
    minute_us = 60_000_000
    told = Deduplication(SCHEMA, ["id"], "time", minute_us, 2 * minute_us).kept()
    assert told == {"seen": "until they are 3 minutes behind the watermark"}


def test_row_without_a_time_is_late() -> None:
    found = Trial(operator()).feed(columns([Copy("a", None, 1)]))
    assert found["_kind"].to_pylist() == ["late"]
    assert found["_lateness"].to_pylist() == [None]


def test_stream_passes_the_first_of_each_horizon(stage: Stage) -> None:
    """Keys come again and again here, as other events: what is far enough away passes."""
    result = stage.files.stream(DELAY).transform(
        deduplicate,
        "40 seconds",
        key="user",
        time="time",
        allowed_lateness="20 seconds",
        reused=True,
    )
    run = stage.files.run(result)
    passed: list[Event] = []
    for batch in stage.batches:
        for it in sorted(batch, key=lambda it: it.seconds):
            near = [abs(other.seconds - it.seconds) for other in passed if other.user == it.user]
            if min(near, default=41) > 40:
                passed.append(it)
    found = Counter((it.user, seconds_of(it.time)) for it in run.rows if it.user != "end")
    assert found == Counter((it.user, it.seconds) for it in passed)
    assert run.dropped_by_us("late.deduplication 40 seconds") == 0
    assert run.dropped_by_us("duplicates.40 seconds") == len(EVENTS) - len(passed)


@pytest.mark.usefixtures("rocksdb")
def test_copies_do_not_pass_whichever_way_is_taken(spark: SparkSession, tmp_path: Path) -> None:
    """Event ids sent two or three times, shortly after each other."""
    rng = random.Random(3)
    sent = [(f"event-{at}", float(at), 1.0) for at in range(60)]
    copies = sorted(sent + rng.choices(sent, k=40), key=lambda it: it[1] + rng.uniform(0, 10))
    for how in ("native", "state"):
        (tmp_path / how).mkdir()
        files = Files(spark, tmp_path / how)
        files.write([copies[:40], copies[40:80], copies[80:], [END]])
        stream = files.stream("20 seconds")
        run = files.run(
            stream.transform(deduplicate, "20 seconds", key="user", time="time", how=how)
        )
        found = Counter(it.user for it in run.rows if it.user != "end")
        assert found == Counter(it[0] for it in sent)
        assert run.dropped_by_spark == 0
        operator_name = run.progress[0].stateOperators[0].operatorName
        assert ("dedupe" in operator_name) == (how == "native")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"horizon": "5 seconds"}, "shorter than the watermark's delay of 20 seconds"),
        ({"horizon": "0 seconds"}, "it must be longer than 0"),
        ({"key": "nobody"}, "there is no column 'nobody'"),
        ({"time": "amount"}, "time must be a timestamp, and amount is double"),
        ({"how": "native"}, "its horizon is the watermark's delay, 20 seconds"),
        ({"how": "native", "horizon": "20 seconds", "reused": True}, "keys are reused"),
        ({"how": "native", "horizon": "20 seconds", "stragglers": "divert"}, "drops late rows"),
        ({"stragglers": "correct"}, "each result is emitted once here"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    (tmp_path / "in").mkdir()
    stream = Files(spark, tmp_path).stream(DELAY)
    with pytest.raises(ConfigError) as refused:
        deduplicate(stream, **({"key": "user", "time": "time", "horizon": "1 minute"} | arguments))
    assert message in str(refused.value)
