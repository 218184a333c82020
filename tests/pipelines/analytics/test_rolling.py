"""Rolling aggregates: a stream says what a batch does, and both what a loop over events does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import avg, col

from millstream.errors import ConfigError
from millstream.pipelines.analytics import rolling, smooth
from tests.pipelines.analytics.events import EVENTS, Stage, by_window, events_of
from tests.pipelines.windows.streams import moment, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rates_per_event_are_of_the_last_minutes(stage: Stage) -> None:
    rows = stage.results(
        lambda it: it.transform(
            rolling,
            "2 minutes",
            key="user",
            time="time",
            emit="final",
            allowed_lateness="2 minutes",
            per_second="rate(*)",
            spent="rate(amount)",
        )
    )
    assert len(rows) == len(EVENTS)
    for row in rows:
        now = seconds_of(row.time)
        window = [it for it in EVENTS if it.user == row.user and now - 120 <= it.seconds <= now]
        amounts = [it.amount for it in window if it.amount is not None]
        assert row.per_second == pytest.approx(len(window) / 120)
        assert row.spent == (pytest.approx(sum(amounts) / 120) if amounts else None)


def test_intervals_are_added_up(stage: Stage) -> None:
    aggregates = {
        "n": "count(*)",
        "per_second": "rate(*)",
        "spent": "sum(amount)",
        "mean": "avg(amount)",
        "least": "min(amount)",
        "most": "max(amount)",
        "p50": "approx_percentile(amount, 0.5)",
        "kinds": "approx_distinct(amount)",
    }
    rows = stage.results(
        lambda it: it.transform(
            rolling, "3 minutes", key="user", time="time", every="1 minute", **aggregates
        )
    )
    found = by_window(rows)
    expected = {
        (it.user, end - 180.0)
        for it in EVENTS
        for end in range(60, 1000, 60)
        if end - 180 <= it.seconds < end
    }
    assert set(found) == expected
    for (user, start), row in found.items():
        window = events_of(user, start, start + 180)
        amounts = sorted(it.amount for it in window if it.amount is not None)
        assert (row.n, row.per_second) == (len(window), pytest.approx(len(window) / 180))
        if not amounts:
            assert row.mean is row.p50 is row.least is None
            continue
        assert row.spent == pytest.approx(sum(amounts))
        assert row.mean == pytest.approx(sum(amounts) / len(amounts))
        assert (row.least, row.most) == (amounts[0], amounts[-1])
        assert row.p50 == amounts[(len(amounts) - 1) // 2], "so few values are all in the sketch"
        assert row.kinds == len(set(amounts)), "so few values are all in the sketch"


ROWS = "user string, time timestamp, amount double"


def by_minute(spark: SparkSession, rows: list[Any], **measures: str) -> list[Any]:
    frame = spark.createDataFrame(rows, ROWS)
    return rolling(
        frame, "1 minute", key="user", time="time", every="1 minute", **measures
    ).collect()


def test_names_of_results_do_not_meet_those_of_parts(spark: SparkSession) -> None:
    rows = [("ann", moment(1), 1.0), ("ann", moment(2), 2.0), ("ann", moment(3), None)]
    measures = {"spent": "avg(amount)", "spent_n": "sum(amount)", "_part0": "count(amount)"}
    (found,) = by_minute(spark, rows, **measures)
    assert (found.spent, found.spent_n, found["_part0"]) == (1.5, 3.0, 2)


@pytest.mark.parametrize("kind", ["decimal(10,2)", "decimal(18,6)", "decimal(28,0)", "int"])
def test_average_is_that_of_spark_per_event_and_per_interval(
    spark: SparkSession, rocksdb: None, kind: str
) -> None:
    rows = [("ann", moment(at), amount) for at, amount in ((1, 1.25), (15, 2.5), (25, -7.0))]
    frame = spark.createDataFrame(rows, ROWS).withColumn("amount", col("amount").cast(kind))
    (expected,) = frame.groupBy("user").agg(avg("amount").alias("it")).collect()
    per_event = rolling(frame, "1 minute", key="user", time="time", it="avg(amount)")
    per_interval = rolling(
        frame, "1 minute", key="user", time="time", every="20 seconds", it="avg(amount)"
    )
    assert per_event.schema["it"].dataType == per_interval.schema["it"].dataType
    for frame in (per_event, per_interval):
        assert expected.it in {row.it for row in frame.collect()}


def test_interval_whose_values_are_all_nan_has_no_percentile(spark: SparkSession) -> None:
    rows = [("ann", moment(1), math.nan), ("bob", moment(1), math.nan), ("bob", moment(2), 5.0)]
    found = by_minute(spark, rows, p50="approx_percentile(amount, 0.5)")
    assert {it.user: it.p50 for it in found} == {"ann": None, "bob": 5.0}


def test_events_that_are_all_final_have_no_kind(spark: SparkSession, rocksdb: None) -> None:
    frame = spark.createDataFrame([], ROWS)
    rolled = rolling(frame, "1 minute", key="user", time="time", n="count(*)")
    assert rolled.columns == [*frame.columns, "n"]
    assert smooth(rolled, "n", key="user", time="time", half_life="1 minute").columns[3:5] == [
        "n",
        "average",
    ]
    diverted = rolling(
        frame, "1 minute", key="user", time="time", stragglers="divert", n="count(*)"
    )
    assert diverted.columns == [*frame.columns, "n", "_kind", "_lateness"]


@pytest.mark.parametrize(
    ("arguments", "aggregates", "message"),
    [
        ({"every": "7 seconds"}, {"n": "count(*)"}, "over must be a multiple of every"),
        ({"every": "1 ms"}, {"n": "count(*)"}, "more than 10000 intervals"),
        (
            {"every": "1 second"},
            {"p": "percentile(amount, 0.5)"},
            "take approx_percentile(...",
        ),
        ({"every": "1 second"}, {"p": "approx_percentile(amount, 5)"}, "lies between 0 and 1"),
        ({"every": "1 second"}, {"p": "approx_percentile(amount)"}, "which percentile?"),
        ({}, {"p": "approx_percentile(amount, 0.5)"}, "which are exact"),
        ({}, {"p": "percentile(amount, 95)"}, "lies between 0 and 1"),
        ({}, {}, "a window without aggregates"),
        ({"emit": "change"}, {"n": "count(*)"}, 'choose "arrival" or "final"'),
        (
            {"every": "1 second", "stragglers": "correct"},
            {"n": "count(*)"},
            "each result is emitted once here",
        ),
        ({"every": "1 second"}, {"user": "count(*)"}, "there is a column user already"),
        ({"every": "1 second"}, {"window_end": "count(*)"}, "a column window_end already"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], aggregates: dict[str, str], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError) as refused:
        rolling(frame, "1 minute", key="user", time="time", **arguments, **aggregates)
    assert message in str(refused.value)


def test_time_that_is_text_is_refused_with_the_conversion(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "user string, time string")
    with pytest.raises(ConfigError, match=r"to_timestamp\(time\)"):
        rolling(frame, "1 minute", key="user", time="time", every="1 second", n="count(*)")
