"""Operators without Spark: dozens of stories, and those that are broken fail small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from millstream.pipelines.state import BucketState
from millstream.testing.streams import (
    Disorder,
    Source,
    StreamDiffers,
    check_operator,
)
from millstream.testing.streams.inputs import as_moment
from tests.testing.streams.broken import CountsLate, MinuteCounts, MissesTimer

MINUTES = st.integers(1, 6).map(lambda it: as_moment("2026-01-01") + timedelta(minutes=it))
ROWS = Source(
    st.fixed_dictionaries({"shop": st.sampled_from("abc"), "minute_end": MINUTES}),
    watermark=("minute_end", "2 minutes"),
)
LATE = Disorder(late=0.3, late_by="1 minute")


class CountsInMemory(MinuteCounts):
    """Keeps its rows where the next batch does not find them."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        self.kept += rows["rows"].to_pylist()
        return super().process(state, rows, watermark_us)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        found = super().on_timer(state, watermark_us).to_pylist()
        counts = Counter(row["shop"] for row in self.kept)
        rows = [{**row, "n": counts[row["shop"]] or row["n"]} for row in found]
        return pa.RecordBatch.from_pylist(rows, schema=self.schema_out)


class TossesCoins(MinuteCounts):
    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        import random

        found = super().on_timer(state, watermark_us).to_pylist()
        rows = [{**row, "n": random.getrandbits(40)} for row in found]
        return pa.RecordBatch.from_pylist(rows, schema=self.schema_out)


def failure_of(operator: MinuteCounts, **arguments: Any) -> StreamDiffers:
    with pytest.raises(StreamDiffers) as raised:
        check_operator(operator, {"rows": ROWS}, seed=1, **arguments)
    return raised.value


def test_operator_that_is_right_passes_dozens_of_stories() -> None:
    check_operator(MinuteCounts(), {"rows": ROWS}, disorder=LATE, seed=1, examples=50)


def test_late_row_that_is_counted_is_found_and_told_in_three_batches() -> None:
    error = failure_of(CountsLate(), disorder=LATE)
    assert error.failure.case.size <= (2, 3, 0)
    assert "late({" in str(error)
    assert "check_operator(..., seed=1)" in str(error)


def test_exact_rule_finds_it_too() -> None:
    disorder = Disorder(late=0.3)
    rules = {"disorder": disorder, "late_when": "0 seconds", "seed": 1}
    check_operator(MinuteCounts(), {"rows": ROWS}, **rules, examples=30)
    error = failure_of(CountsLate(), disorder=disorder, late_when="0 seconds")
    assert error.failure.case.size[0] <= 3


def test_timer_that_is_missed_is_found_with_one_row() -> None:
    assert failure_of(MissesTimer()).failure.case.size == (1, 1, 0)


def test_state_in_memory_is_found_with_two_batches() -> None:
    error = failure_of(CountsInMemory())
    assert error.failure.case.size <= (2, 2, 0)


def test_batch_that_is_other_when_repeated_is_found() -> None:
    error = failure_of(TossesCoins(), leave_out=lambda row: True)
    assert error.failure.changed
    assert error.failure.case.size[2] == 1


def test_column_that_is_left_out_may_be_other_when_a_batch_is_repeated() -> None:
    check_operator(TossesCoins(), {"rows": ROWS}, ignore=["n"], seed=1, examples=20)


class CannotCountOne(MinuteCounts):
    """Counts batches, which is wrong, and cannot do with a batch of one row."""

    schema_out = pa.schema([("n", pa.int64()), ("share", pa.float64())])

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        count = rows["rows"].num_rows
        found = [{"n": count, "share": 1 / (count - 1)}]
        return pa.RecordBatch.from_pylist(found, schema=self.schema_out)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.nothing


def test_failure_that_was_found_is_told_though_smaller_cases_raise() -> None:
    same = Source(
        st.fixed_dictionaries({"shop": st.just("a"), "minute_end": MINUTES}),
        watermark=ROWS.watermark,
    )
    told = []
    for seed in range(12):
        try:
            check_operator(
                CannotCountOne(), {"rows": same}, seed=seed, examples=1, faults=(), batches=3
            )
        except StreamDiffers as error:
            told.append(error.failure.case)
        except ZeroDivisionError as error:
            notes = "\n".join(error.__notes__)
            assert "trial.batch(" in notes
            assert f"check_operator(..., seed={seed})" in notes
    assert told
    assert all(case.size[0] > 2 for case in told), "none of them has a batch of one row"


def test_reference_is_the_judge_if_there_is_one() -> None:
    def count(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        counts = Counter((row["shop"], row["minute_end"]) for row in rows)
        return [{"shop": shop, "minute_end": end, "n": n} for (shop, end), n in counts.items()]

    check_operator(MinuteCounts(), {"rows": ROWS}, reference=count, seed=1, examples=20)
    with pytest.raises(StreamDiffers):
        check_operator(
            MinuteCounts(), {"rows": ROWS}, reference=lambda rows: [], seed=1, examples=1
        )
