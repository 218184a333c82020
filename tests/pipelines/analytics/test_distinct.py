"""Distinct values, exact and by sketches, against sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import count_distinct, merge_distinct
from millstream.pipelines.analytics.distinct import How
from tests.pipelines.analytics.events import EVENTS, Stage, by_window, events_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("how", ["exact", "hll", "theta"])
def test_values_are_counted_once_per_window(stage: Stage, how: How) -> None:
    rows = stage.results(
        lambda it: it.transform(
            count_distinct, "2 minutes", key="user", time="time", of="amount", how=how
        )
    )
    found = by_window(rows)
    assert set(found) == {(it.user, it.seconds // 120 * 120) for it in EVENTS}
    for (user, start), row in found.items():
        amounts = {it.amount for it in events_of(user, start, start + 120)}
        assert row.distinct == len(amounts - {None}), "so few are all in a sketch, too"


@pytest.mark.parametrize("how", ["hll", "theta"])
def test_sketches_of_hours_are_merged_to_those_of_days(spark: SparkSession, how: Any) -> None:
    visits = spark.range(36_000).selectExpr(
        "timestamp_seconds(id) at", "id % 5000 user", "'x' site"
    )
    hours = visits.transform(
        count_distinct, "1 hour", key="site", time="at", of="user", how=how, sketch="users"
    )
    assert hours.count() == 10
    (merged,) = hours.transform(merge_distinct, "users", key="site", how=how).collect()
    assert merged.distinct == pytest.approx(5000, rel=0.05)
    again = hours.transform(merge_distinct, "users", key="site", how=how).collect()[0]
    assert again.distinct == merged.distinct


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"how": "guess"}, "choose one of exact, hll, theta"),
        ({"sketch": "users"}, "exact counts have no sketch"),
        ({"how": "hll", "log_size": 30}, "hll sketches have 4 to 21"),
        ({"how": "hll", "log_size": 0}, "an integer of at least 4"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError) as refused:
        count_distinct(frame, "1 minute", key="user", time="time", of="amount", **arguments)
    assert message in str(refused.value)
    with pytest.raises(ConfigError, match="user is string: name the column of sketches"):
        merge_distinct(frame, "user", key="amount", how="hll")
