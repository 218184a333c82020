"""The rule by which rows are late."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from millstream.pipelines.state.lateness import is_late, seconds_behind, split_late

SECOND_US = 1_000_000
ROWS = pa.RecordBatch.from_pydict(
    {"id": [1, 2, 3, 4], "at": pa.array([1, 2, 3, None]).cast(pa.timestamp("s"))},
    schema=pa.schema({"id": pa.int64(), "at": pa.timestamp("us")}),
)


def test_row_is_late_at_the_limit_before_it_or_without_a_time() -> None:
    assert is_late(ROWS, "at", 2 * SECOND_US).to_pylist() == [True, True, False, True]


def test_rows_are_parted_in_their_order() -> None:
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


def test_lateness_of_the_first_year_is_told_though_a_double_has_not_all_its_microseconds() -> None:
    first = datetime(1, 1, 1, tzinfo=UTC)
    rows = pa.RecordBatch.from_pydict({"at": pa.array([first], pa.timestamp("us", tz="UTC"))})
    now = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
    now_us = int(now.timestamp()) * SECOND_US + now.microsecond
    (found,) = seconds_behind(rows, "at", now_us).to_pylist()
    assert abs(found - (now - first).total_seconds()) < 1e-4
