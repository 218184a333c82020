"""The trial is what it claims to be: batches through bytes, timers, buckets."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.state.trial import Trial
from tests.drawing import draws
from tests.pipelines.state.counter import HoldAndCount
from tests.pipelines.state.rows import KEYS, ROWS, SCHEMA, Row, to_columns


def counts(
    trial: Trial, rows: list[Row], watermark_us: int | None
) -> dict[tuple[object, ...], int]:
    result = trial.feed({"rows": to_columns(rows)}, watermark_us).to_pylist()
    assert len({(it["user"], it["shop"]) for it in result}) == len(result)
    return {(it["user"], it["shop"]): it["count"] for it in result}


@settings(max_examples=draws(40))
@given(st.lists(st.tuples(st.lists(ROWS, max_size=5), st.integers(-60, 60)), max_size=6))
def test_operator_runs_in_buckets_as_in_one_place(batches: list[tuple[list[Row], int]]) -> None:
    trial = Trial(HoldAndCount(SCHEMA, KEYS, "time"), buckets=3)
    held: list[Row] = []
    total: Counter[tuple[object, ...]] = Counter()
    watermark_us = -100
    for rows, given_us in batches:
        watermark_us = max(watermark_us, given_us)
        rows = [row for row in rows if row.time_us > watermark_us]
        held += rows
        due = [row[:2] for row in held if row.time_us <= watermark_us]
        held = [row for row in held if row.time_us > watermark_us]
        total.update(due)
        assert counts(trial, rows, given_us) == {key: total[key] for key in due}
    rest = [row[:2] for row in held]
    total.update(rest)
    last = trial.finish().to_pylist()
    assert {(it["user"], it["shop"]): it["count"] for it in last} == {it: total[it] for it in rest}


def test_timer_fires_when_the_watermark_is_there() -> None:
    trial = Trial(HoldAndCount(SCHEMA, KEYS, "time"))
    assert not counts(trial, [Row("ann", 1, 10, 0)], 5)
    assert trial.advance(9).num_rows == 0
    assert trial.advance(10).num_rows == 1
    assert trial.advance(11).num_rows == 0
