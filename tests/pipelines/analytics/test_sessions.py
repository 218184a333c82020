"""Sessions with their attributes, against a loop over the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.analytics import summarize_sessions
from tests.pipelines.analytics.events import EVENTS, Event, Stage
from tests.pipelines.windows.streams import moment, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP = 12


def by_loop() -> list[list[Event]]:
    found: list[list[Event]] = []
    for user in {it.user for it in EVENTS}:
        own = sorted((it for it in EVENTS if it.user == user), key=lambda it: it.seconds)
        for it in own:
            if found and found[-1][0].user == user and it.seconds - found[-1][-1].seconds < GAP:
                found[-1].append(it)
            else:
                found.append([it])
    return found


def test_sessions_have_their_first_and_last_values(stage: Stage) -> None:
    rows = stage.results(
        lambda it: it.transform(
            summarize_sessions,
            f"{GAP} seconds",
            key="user",
            time="time",
            landing="first(amount)",
            exit="last(amount)",
            large="bool_or(amount > 6)",
        )
    )
    found = {(it.user, seconds_of(it.session_start)): it for it in rows}
    expected = by_loop()
    assert len(rows) == len(found) == len(expected)
    for own in expected:
        row = found[own[0].user, own[0].seconds]
        amounts = [it.amount for it in own if it.amount is not None]
        assert row.events == len(own)
        assert row.duration == pytest.approx(own[-1].seconds - own[0].seconds)
        assert (row.landing, row.exit) == ((amounts[0], amounts[-1]) if amounts else (None, None))
        assert row.large == (any(it > 6 for it in amounts) if amounts else None)
    assert len({it.session_id for it in rows}) == len(rows)


def test_events_that_are_the_gap_apart_are_one_session(spark: SparkSession) -> None:
    rows = [("ann", moment(0)), ("ann", moment(60)), ("bob", moment(0)), ("bob", moment(60.001))]
    frame = spark.createDataFrame(rows, "user string, time timestamp")
    found = frame.transform(summarize_sessions, "1 minute", key="user", time="time").collect()
    assert sorted((it.user, it.events) for it in found) == [("ann", 2), ("bob", 1), ("bob", 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gap": "0 seconds"}, "it must be longer than 0"),
        ({"duration": "count(*)"}, "a session has duration already"),
        ({"stragglers": "correct"}, "each result is emitted once here"),
        ({"time": "amount"}, "time must be a timestamp, and amount is double"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.createDataFrame([], "user string, time timestamp, amount double")
    with pytest.raises(ConfigError) as refused:
        summarize_sessions(
            frame, **({"key": "user", "time": "time", "gap": "1 minute"} | arguments)
        )
    assert message in str(refused.value)
