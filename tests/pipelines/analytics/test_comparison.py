"""Intervals beside earlier ones, against a loop over the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import compare
from tests.pipelines.analytics.events import EVENTS, Stage, by_window, events_of
from tests.pipelines.windows.streams import moment, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGAINST = {"before": "30 seconds", "long_ago": "5 minutes"}


def spent(user: str | None, start: float) -> tuple[int | None, float | None]:
    window = events_of(user, start, start + 30)
    amounts = [it.amount for it in window if it.amount is not None]
    return len(window) or None, sum(amounts) if amounts else None


@pytest.mark.parametrize("absent", [False, True])
def test_intervals_are_compared_with_earlier_ones(stage: Stage, absent: bool) -> None:
    rows = stage.results(
        lambda it: it.transform(
            compare,
            "30 seconds",
            key="user",
            time="time",
            against=AGAINST,
            absent=absent,
            n="count(*)",
            spent="sum(amount)",
        )
    )
    found = by_window(rows)
    present = {(it.user, it.seconds // 30 * 30) for it in EVENTS}
    shifted = {(user, start + shift) for user, start in present for shift in (30, 300)}
    assert set(found) == (present | shifted if absent else present)
    for (user, start), row in found.items():
        assert (row.n, row.spent) == spent(user, start)
        assert (row.n_before, row.spent_before) == spent(user, start - 30)
        assert (row.n_long_ago, row.spent_long_ago) == spent(user, start - 300)
        if row.n_before:
            grown = ((row.n or 0) - row.n_before) / row.n_before
            assert row.n_before_change == pytest.approx(grown)
        else:
            assert row.n_before_change is None


def test_value_that_is_not_known_has_not_changed(spark: SparkSession) -> None:
    """The first user's average is null in the second minute; the second one's has gone."""
    rows = [("ann", moment(1), 4.0), ("ann", moment(61), None), ("bob", moment(1), 4.0)]
    frame = spark.createDataFrame(rows, "user string, time timestamp, amount double")
    found = frame.transform(
        compare, "1 minute", key="user", time="time", absent=True, mean="avg(amount)", n="count(*)"
    )
    later = {it.user: it for it in found.collect() if seconds_of(it.window_start) == 60}
    assert (later["ann"].mean_before_change, later["ann"].n_before_change) == (None, 0.0)
    assert (later["bob"].mean_before_change, later["bob"].n_before_change) == (-1.0, -1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"against": {"before": "45 seconds"}}, "no multiple of size"),
        ({"against": {}}, "against what?"),
        ({"against": {"before": "1 month"}}, "a month has no fixed length"),
        ({"n_before": "sum(amount)"}, "there is a column n_before already"),
        ({"against": {"end": "30 seconds"}, "window": "sum(amount)"}, "window_end already"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError) as refused:
        compare(frame, "30 seconds", key="user", time="time", n="count(*)", **arguments)
    assert message in str(refused.value)
