"""Percentiles of windows, against sorted lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import merge_percentiles, percentiles
from tests.pipelines.analytics.events import EVENTS, Stage, by_window, events_of
from tests.pipelines.windows.streams import moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def exact(values: list[float], fraction: float) -> float | None:
    if not values:
        return None
    place = (len(values) - 1) * fraction
    low, high = values[math.floor(place)], values[math.ceil(place)]
    return low + (high - low) * (place % 1)


def test_exact_percentiles_are_those_of_the_sorted_values(stage: Stage) -> None:
    at = (0.5, 0.999)
    rows = stage.results(
        lambda it: it.transform(
            percentiles, "2 minutes", key="user", time="time", of="amount", at=at
        )
    )
    found = by_window(rows)
    assert set(found) == {(it.user, it.seconds // 120 * 120) for it in EVENTS}
    for (user, start), row in found.items():
        window = events_of(user, start, start + 120)
        amounts = sorted(it.amount for it in window if it.amount is not None)
        assert row.p50 == pytest.approx(exact(amounts, 0.5))
        assert row.p99_9 == pytest.approx(exact(amounts, 0.999))


def test_sketched_percentiles_are_near(stage: Stage) -> None:
    rows = stage.results(
        lambda it: it.transform(
            percentiles, "30 seconds", key="user", time="time", of="amount", at=(0.5,), how="kll"
        )
    )
    for (user, start), row in by_window(rows).items():
        window = events_of(user, start, start + 30)
        amounts = sorted(it.amount for it in window if it.amount is not None)
        assert row.p50 == (amounts[(len(amounts) - 1) // 2] if amounts else None)


def test_sketches_of_minutes_are_merged_to_those_of_hours(spark: SparkSession) -> None:
    requests = spark.range(60_000).selectExpr(
        "timestamp_seconds(id % 3600) at", "cast(id as double) millis", "'x' service"
    )
    minutes = requests.transform(
        percentiles, "1 minute", key="service", time="at", of="millis", how="kll", sketch="all"
    )
    assert minutes.count() == 60
    (hour,) = minutes.transform(merge_percentiles, "all", key="service", at=(0.5, 0.95)).collect()
    assert hour.p50 == pytest.approx(30_000, abs=60_000 * 0.03)
    assert hour.p95 == pytest.approx(57_000, abs=60_000 * 0.03)


def test_window_whose_values_are_all_nan_has_no_percentile(spark: SparkSession) -> None:
    nan = math.nan
    rows = [("a", moment(1), nan), ("b", moment(1), None), ("c", moment(1), nan)]
    frame = spark.createDataFrame(
        [*rows, ("c", moment(2), 3.0)], "user string, time timestamp, amount double"
    )
    found = frame.transform(
        percentiles,
        "1 minute",
        key="user",
        time="time",
        of="amount",
        at=(0.5,),
        how="kll",
        sketch="s",
    )
    expected = {"a": None, "b": None, "c": 3.0}
    assert {it.user: it.p50 for it in found.collect()} == expected
    merged = found.transform(merge_percentiles, "s", key="user", at=(0.5,))
    assert {it.user: it.p50 for it in merged.collect()} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": (95,)}, "a percentile is between 0 and 1, like 0.95 for the 95th, and not 95"),
        ({"at": ()}, "which percentiles?"),
        ({"at": (0.5, 0.5)}, "one of them is there twice"),
        ({"of": "user"}, "a percentile is of a number, and user is string"),
        ({"sketch": "all"}, "exact percentiles have no sketch"),
        ({"how": "kll", "k": 2}, "k=2: it must be an integer of at least 8"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError) as refused:
        percentiles(frame, "1 minute", key="user", time="time", **{"of": "amount"} | arguments)
    assert message in str(refused.value)
