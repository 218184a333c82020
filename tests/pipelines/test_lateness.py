"""The policy for late rows, and the rule on Arrow columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.lateness import (
    DropOrDivert,
    Lateness,
    is_late,
    seconds_behind,
    split_late,
)

SECOND_US = 1_000_000
ROWS = pa.RecordBatch.from_pydict(
    {"id": [1, 2, 3, 4], "at": pa.array([1, 2, 3, None]).cast(pa.timestamp("s"))},
    schema=pa.schema({"id": pa.int64(), "at": pa.timestamp("us")}),
)


def test_row_is_late_at_the_limit_before_it_or_without_a_time() -> None:
    assert is_late(ROWS, "at", 2 * SECOND_US).to_pylist() == [True, True, False, True]


def test_split_rows_keep_their_order() -> None:
    on_time, late = split_late(ROWS, "at", 2 * SECOND_US)
    assert on_time.column("id").to_pylist() == [3]
    assert late.column("id").to_pylist() == [1, 2, 4]


def test_rows_of_which_none_is_late_are_not_copied() -> None:
    timely = ROWS.slice(0, 3)
    on_time, late = split_late(timely, "at", 0)
    assert on_time is timely
    assert late.num_rows == 0


def test_lateness_is_counted_in_seconds_behind_the_watermark() -> None:
    assert seconds_behind(ROWS, "at", 2_500_000).to_pylist() == [1.5, 0.5, -0.5, None]


def test_lateness_of_the_first_year_is_rounded_to_a_double() -> None:
    first = datetime(1, 1, 1, tzinfo=UTC)
    rows = pa.RecordBatch.from_pydict({"at": pa.array([first], pa.timestamp("us", tz="UTC"))})
    now = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
    now_us = int(now.timestamp()) * SECOND_US + now.microsecond
    (found,) = seconds_behind(rows, "at", now_us).to_pylist()
    assert abs(found - (now - first).total_seconds()) < 1e-4


def test_results_are_final_at_the_watermark_if_late_rows_correct_them() -> None:
    assert Lateness("drop", 5).final_us == 5
    assert Lateness("correct", 5).final_us == 0


def test_policy_is_parsed_from_the_arguments_of_operators() -> None:
    found = Lateness.of("divert", "10 seconds", "late.test")
    assert found == Lateness("divert", 10 * SECOND_US, "late.test")
    assert Lateness.of("drop", None, "late.test").allowed_us == 0


@pytest.mark.parametrize(
    ("stragglers", "allowed", "choices", "message"),
    [
        ("keep", None, None, "stragglers='keep': choose one of drop, divert, correct"),
        ("correct", None, None, "without allowed_lateness"),
        ("correct", "1 hour", DropOrDivert, 'cannot be corrected. Choose "drop"'),
        ("keep", None, DropOrDivert, "stragglers='keep': choose one of drop, divert"),
        ("drop", "soon", None, "allowed_lateness 'soon' is no duration"),
    ],
)
def test_bad_policy_is_refused_with_the_choices(
    stragglers: str, allowed: str | None, choices: Any, message: str
) -> None:
    given = {} if choices is None else {"choices": choices}
    with pytest.raises(ConfigError) as refused:
        Lateness.of(stragglers, allowed, "late.test", **given)
    assert message in str(refused.value)
