"""Windows through the harness: any cuts, any faults, rows late by a hair, and none lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import strategies as st

from millstream.pipelines.pipeline import pipeline
from millstream.pipelines.spec import table, topic
from millstream.pipelines.windows import (
    Window,
    calendar,
    hopping,
    session,
    sliding,
    tumbling,
)
from millstream.testing.streams import Disorder, Outcome, Source, check_stream, moments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COLUMNS = "user string, time timestamp, amount double, _offset long"
SPEC: dict[str, Any] = {"n": "count(*)", "spent": "sum(amount)", "most": "max(amount)"}
STRAGGLING = Disorder(late=0.4)
SEED = 4  # with which some rows are late


def events(times: st.SearchStrategy[datetime], delay: str = "10 seconds") -> Source:
    """Times on a grid, so that some are at the very end of a window, and some rows have none."""
    row = st.fixed_dictionaries(
        {
            "user": st.sampled_from(["ann", "bob", None]),
            "time": st.one_of(times, times, times, times, times, st.none()),
            "amount": st.integers(0, 80).map(lambda it: it / 8),
        }
    )
    return Source(row, schema=COLUMNS, watermark=("time", delay))


EVENTS = events(moments("4 minutes", "5 seconds"))


def check(function: Any, spark: SparkSession, source: Source = EVENTS, **rest: Any) -> None:
    outcomes = check_stream(
        function, {"events": source}, spark=spark, **({"seed": SEED, "examples": 1} | rest)
    )
    none_dropped_by_spark(outcomes)
    assert any(rows for it in outcomes for batches in it.batches.values() for rows in batches)


def none_dropped_by_spark(outcomes: list[Outcome]) -> None:
    assert [it.dropped_by_spark for it in outcomes] == [0] * len(outcomes)


def minute_is_over(row: Any, watermark: datetime) -> bool:
    return bool(row["time"].replace(second=0) + timedelta(minutes=1) <= watermark)


def results_of(window: Window) -> Any:
    def results(events: DataFrame) -> DataFrame:
        return events.transform(window)

    return results


def test_tumbling_windows_drop_what_is_late_and_nothing_else(spark: SparkSession) -> None:
    window = tumbling("1 minute", key="user", time="time", **SPEC)
    check(results_of(window), spark, disorder=STRAGGLING, late_when=minute_is_over)


def test_tumbling_windows_wait_for_what_is_allowed(spark: SparkSession) -> None:
    window = tumbling("1 minute", key="user", time="time", allowed_lateness="20 seconds", **SPEC)

    def is_late(row: Any, watermark: datetime) -> bool:
        return minute_is_over(row, watermark - timedelta(seconds=20))

    check(results_of(window), spark, disorder=STRAGGLING, late_when=is_late)


def test_hopping_results_and_diverted_rows_are_all_rows(spark: SparkSession) -> None:
    """A row may be late for one window and on time for the next."""
    window = hopping(
        "1 minute", "25 seconds", key="user", time="time", stragglers="divert", n="count(*)"
    )

    @pipeline(
        reads=topic("events", schema=COLUMNS, watermark=("time", "10 seconds")),
        writes={"results": table("results"), "late": table("late")},
    )
    def hops(events: DataFrame) -> dict[str, DataFrame]:
        return {"results": events.transform(window), "late": events.transform(window.late)}

    def reference(events: DataFrame) -> dict[str, DataFrame]:
        from pyspark.sql import functions as F  # noqa: N812

        placed = events.select("*", F.window("time", "1 minute", "25 seconds").alias("w"))
        timeless = events.where("time is null").withColumn(
            "w", F.lit(None).cast(placed.schema["w"].dataType)
        )
        placed = placed.unionByName(timeless)
        is_late = F.coalesce(F.expr("w.end <= _watermark"), F.lit(False)) | F.col("w").isNull()
        bounds = ["w.start as window_start", "w.end as window_end"]
        counts = placed.where(~is_late).groupBy("user", "w").agg(F.count("*").alias("n"))
        behind = (F.unix_micros("_watermark") - F.unix_micros("time")) / 1e6
        late = placed.where(is_late).withColumn("_lateness", behind)
        shown = ["user", "time", "amount", "_offset", *bounds, "'late' as _kind", "_lateness"]
        return {
            "results": counts.selectExpr("user", *bounds, "n", "'final' as _kind"),
            "late": late.selectExpr(*shown),
        }

    check(hops, spark, Source(EVENTS.rows), disorder=STRAGGLING, reference=reference)


def test_sessions_end_once(spark: SparkSession) -> None:
    """What is late is late for certain: on the edge, a session that is over cannot be joined."""
    window = session("15 seconds", key="user", time="time", **SPEC)
    disorder = Disorder(late=0.2, late_by="15 seconds")
    check(results_of(window), spark, disorder=disorder)


def test_days_follow_the_clocks_of_their_zone(spark: SparkSession) -> None:
    """On 29 March 2026 Berlin's day has 23 hours."""
    berlin = ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 3, 27, 20, tzinfo=UTC)
    hours = st.integers(0, 90).map(lambda it: begin + timedelta(hours=it))
    window = calendar("day", "Europe/Berlin", key="user", time="time", **SPEC)

    def day_is_over(row: Any, watermark: datetime) -> bool:
        day = row["time"].astimezone(berlin).date() + timedelta(days=1)
        return bool(datetime(day.year, day.month, day.day, tzinfo=berlin) <= watermark)

    source = events(hours, delay="2 hours")
    check(results_of(window), spark, source, disorder=STRAGGLING, late_when=day_is_over)


WINDOW = ["user", "window_start", "window_end"]


def test_results_that_change_end_with_the_right_ones(spark: SparkSession) -> None:
    window = hopping(
        "1 minute", "30 seconds", key="user", time="time", emit="change", buckets=4, **SPEC
    )
    disorder = Disorder(late=0.2, late_by="1 minute")
    check(results_of(window), spark, key=WINDOW, disorder=disorder)


def test_stragglers_correct_results_until_they_are_right(spark: SparkSession) -> None:
    window = tumbling(
        "20 seconds",
        key="user",
        time="time",
        stragglers="correct",
        allowed_lateness="2 minutes",
        buckets=4,
        **SPEC,
    )
    disorder = Disorder(within="2 minutes")
    outcomes = check_stream(
        results_of(window),
        {"events": EVENTS},
        spark=spark,
        key=WINDOW,
        disorder=disorder,
        seed=SEED,
    )
    none_dropped_by_spark(outcomes)
    for outcome in outcomes:
        assert_corrections_follow_what_they_correct(outcome)
    kinds = {row["_kind"] for it in outcomes for row in it.rows()}
    assert kinds == {"final", "correction"}


def assert_corrections_follow_what_they_correct(outcome: Outcome) -> None:
    """`_old` of a correction is what came before it, or nothing if nothing did."""
    latest: dict[Any, Any] = {}
    for row in outcome.rows():
        window = (row["user"], row["window_start"])
        values = {name: row[name] for name in SPEC}
        if row["_kind"] == "correction":
            assert row["_old"] == latest.get(window)
        else:
            assert window not in latest, "final only once"
        latest[window] = values


def sliding_of(stragglers: Any, **rest: Any) -> Any:
    def slides(events: DataFrame) -> DataFrame:
        frame = events.drop("_watermark")
        usual: dict[str, Any] = {"emit": "final", "allowed_lateness": "30 seconds"} | rest
        recent = sliding(
            "30 seconds", key="user", time="time", stragglers=stragglers, **usual, **SPEC
        )
        return recent.rows(frame) if stragglers == "divert" else frame.transform(recent)

    return slides


@pytest.mark.parametrize("stragglers", ["drop", "divert"])
def test_sliding_windows_leave_out_what_is_late(spark: SparkSession, stragglers: str) -> None:
    check(
        sliding_of(stragglers, buckets=4),
        spark,
        disorder=STRAGGLING,
        late_when="30 seconds",
        leave_out=lambda row: row["_kind"] == "late",
    )


def test_sliding_windows_are_corrected_until_they_are_right(spark: SparkSession) -> None:
    check(
        sliding_of("correct", allowed_lateness="2 minutes", buckets=4),
        spark,
        Source(EVENTS.rows, schema=COLUMNS, watermark=("time", "0 seconds")),
        key="_offset",
        disorder=Disorder(within="2 minutes"),
    )


def test_sliding_windows_that_come_early_end_right(spark: SparkSession) -> None:
    check(
        sliding_of("drop", emit="change", buckets=4),
        spark,
        key="_offset",
        disorder=STRAGGLING,
        late_when="30 seconds",
    )
