"""z-scores against the statistics of the events before, one by one."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import flag_anomalies
from tests.pipelines.analytics.events import EVENTS, Stage
from tests.pipelines.windows.streams import moment, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OVER = 120


def test_events_are_judged_by_those_before_them(stage: Stage) -> None:
    rows = stage.results(
        lambda it: it.transform(
            flag_anomalies,
            "amount",
            key="user",
            time="time",
            over=f"{OVER} seconds",
            threshold=1.5,
            min_count=3,
            emit="final",
            allowed_lateness=f"{OVER} seconds",
        )
    )
    assert len(rows) == len(EVENTS)
    assert any(it.is_anomaly for it in rows)
    for row in rows:
        now = seconds_of(row.time)
        own = [it for it in EVENTS if it.user == row.user and now - OVER <= it.seconds < now]
        amounts = [it.amount for it in own if it.amount is not None]
        if len(amounts) < 2 or row.amount is None:
            assert row.z is None
            assert not row.is_anomaly
            continue
        mean, deviation = statistics.fmean(amounts), statistics.stdev(amounts)
        assert (row["mean"], row.deviation) == pytest.approx((mean, deviation))
        if deviation:
            assert row.z == pytest.approx((row.amount - mean) / deviation)
            assert row.is_anomaly == (abs(row.z) > 1.5 and len(amounts) >= 3)
        else:
            assert row.is_anomaly == (row.amount != mean and len(amounts) >= 3)


def test_values_that_are_alike_or_not_finite_make_no_anomaly(
    spark: SparkSession, rocksdb: None
) -> None:
    """A mean of many times 0.1 is not 0.1; and one NaN would be in every mean after it."""
    odd = {"nan": math.nan, "inf": math.inf, "null": None}
    series: dict[str, list[float | None]] = {
        "alike": [0.1] * 60,
        "other": [0.1] * 60 + [0.2],
        **{
            name: [*(20.0 + at % 3 for at in range(12)), it, 20.0, 21.0] for name, it in odd.items()
        },
    }
    rows = [
        (name, moment(at), value)
        for name, values in series.items()
        for at, value in enumerate(values)
    ]
    frame = spark.createDataFrame(rows, "user string, time timestamp, amount double")
    found = frame.transform(
        flag_anomalies, "amount", key="user", time="time", over="1 hour"
    ).collect()
    assert [(it.user, seconds_of(it.time)) for it in found if it.is_anomaly] == [("other", 60)]
    assert {(it["mean"], it.deviation) for it in found if it.user == "alike"} == {
        (None, None),
        (0.1, None),
        (0.1, 0.0),
    }
    last = {it.user: (it["mean"], it.z) for it in found if seconds_of(it.time) == 14}
    assert last["nan"] == last["inf"] == last["null"]
    assert last["nan"][1] is not None
    assert {it.z for it in found if it.user in odd and seconds_of(it.time) == 12} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0}, "threshold=0: so many standard deviations"),
        ({"min_count": 1}, "min_count=1: it must be an integer of at least 2"),
        ({"value": "user"}, "an anomaly is one of a number, and user is string"),
        ({"over": "1 month"}, "a month has no fixed length"),
        ({"time": "amount"}, "time must be a timestamp, and amount is double"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    usual = {"key": "user", "time": "time", "value": "amount", "over": "1 minute"}
    with pytest.raises(ConfigError) as refused:
        flag_anomalies(frame, **(usual | arguments))
    assert message in str(refused.value)
