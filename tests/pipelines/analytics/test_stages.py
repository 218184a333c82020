"""Aggregations of aggregations: stragglers are counted once, by us, and waited for if allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import deduplicate, smooth, top_k
from millstream.pipelines.analytics.stages import (
    check_fraction,
    check_whole,
    lateness_of,
    listed,
)
from tests.pipelines.analytics.events import start_of
from tests.pipelines.windows.streams import END, Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("allowed", [None, "10 seconds"])
def test_straggler_is_counted_as_late_or_waited_for(
    spark: SparkSession, tmp_path: Path, allowed: str | None
) -> None:
    """The watermark is at 61 when the stragglers of the first minute come, and at 121 when the last
    of them does: too late for a window that ends at 60 and waits ten seconds."""
    files = Files(spark, tmp_path)
    files.write(
        [
            [("ann", 1, 1.0), ("bob", 2, 1.0)],
            [("ann", 62, 1.0)],
            [("bob", 59, 1.0), ("bob", 58, 1.0)],
            [("ann", 122, 1.0)],
            [("bob", 3, 1.0)],
            [END],
        ]
    )
    live = files.stream("1 second")
    run = files.run(
        live.transform(top_k, "1 minute", key="user", time="time", k=1, allowed_lateness=allowed)
    )
    (first,) = [it for it in run.rows if start_of(it) == 0]
    assert (first.user, first.value) == (("bob", 3) if allowed else ("ann", 1))
    assert run.dropped_by_us("late.top 1 minute") == (1 if allowed else 3)
    assert run.dropped_by_spark == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda it: smooth(it, "n", key="user", time="time", half_life="1 hour"),
        lambda it: deduplicate(it, "1 hour", key="user", time="time"),
    ],
)
def test_column_of_kinds_is_refused_with_the_cure(
    spark: SparkSession, function: Callable[[Any], Any]
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, n long, _kind string")
    with pytest.raises(ConfigError, match=r'frame\.drop\("_kind"\)'):
        function(frame)


def test_policy_that_corrects_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r'Choose "drop", which counts late rows, or "divert"'):
        lateness_of("correct", "1 hour", None, "top", 60_000_000)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="it must be an integer of at least 1"):
        check_whole("k", value)


@pytest.mark.parametrize("value", [-0.1, 1.1, 95, "0.5", float("nan")])
def test_what_is_no_fraction_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"between 0 and 1, like 0\.95"):
        check_fraction("p", value)


def test_late_rows_are_counted_by_function_and_length() -> None:
    assert lateness_of("drop", None, None, "top", 60_000_000).count_as == "late.top 1 minute"
    assert lateness_of("drop", None, "late.movers", "top", 60_000_000).count_as == "late.movers"
    assert listed("user") == ["user"]
    assert listed(("user", "shop")) == ["user", "shop"]
