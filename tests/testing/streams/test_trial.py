"""Stories told by hand: results as they come, crashes, a clock, and the comparison at the end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.pipeline import pipeline
from millstream.pipelines.spec import table, topic
from millstream.testing.clock import ManualClock
from millstream.testing.streams import Source, StreamDiffers, StreamTrial, again, late
from tests.testing.streams.orders import SCHEMA, order, orders_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pipeline(
    reads=topic("orders", schema=SCHEMA, watermark=("at", "10 seconds")), writes=table("counts")
)
def counts(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import window

    minutes = orders.groupBy("shop", window("at", "1 minute")).count()
    return minutes.select("shop", "window.end", "count")


def test_results_come_when_the_watermark_says_so(spark: SparkSession) -> None:
    with StreamTrial(counts, spark=spark) as trial:
        trial.batch(orders=[order(1, 5), order(2, 50)], crash="before sink")
        trial.restart()
        trial.batch(orders=[order(3, 55)], crash="after sink")
        assert trial.results() == []
        trial.advance_watermark("2026-01-01 00:01:00")
        end = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
        assert trial.results() == [{"shop": "a", "end": end, "count": 3}]
        trial.batch(orders=[late(order(4, 30)), order(5, 70)])
        trial.lose_commit()
        outcome = trial.check()
    assert outcome.dropped_by_spark > 0
    assert [row["count"] for row in outcome.rows()] == [3, 1]


def test_check_tells_the_story_that_differs(spark: SparkSession) -> None:
    with StreamTrial(counts, spark=spark) as trial:
        trial.batch(orders=[order(1, 5)])
        trial.batch(orders=[again(order(1, 5))], crash="before work")
        with pytest.raises(StreamDiffers) as raised:
            trial.check()
    text = str(raised.value)
    assert "again({'id': 1" in text
    assert "crash='before work'" in text
    assert "only in the stream  a" in text


def test_clock_is_the_time_of_the_batch(spark: SparkSession) -> None:
    def stamped(orders: DataFrame) -> DataFrame:
        from pyspark.sql.functions import current_timestamp

        return orders.select("id", current_timestamp().alias("now"))

    clock = ManualClock(1_700_000_000_000)
    orders = {"orders": orders_source()}
    with StreamTrial(stamped, orders, spark=spark, clock=clock) as trial:
        trial.batch(orders=[order(1, 0)])
        clock.advance(60_000)
        trial.batch(orders=[order(2, 1)], crash="after sink")
        found = [(row["id"], row["now"].timestamp()) for row in trial.results()]
    assert found == [(1, 1_700_000_000), (2, 1_700_000_060)]


def test_mistakes_in_a_story_are_told(spark: SparkSession) -> None:
    with StreamTrial(counts, spark=spark) as trial:
        with pytest.raises(ConfigError, match="counts reads orders, and no clicks"):
            trial.batch(clicks=[])
        with pytest.raises(ConfigError, match="choose one of before work, before sink, after sink"):
            trial.batch(orders=[], crash="at noon")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="there is no batch before this"):
            trial.restart()


def test_last_row_moves_a_watermark_that_the_pipeline_makes(spark: SparkSession) -> None:
    def own(orders: DataFrame) -> DataFrame:
        from pyspark.sql.functions import window

        marked = orders.withWatermark("at", "10 seconds")
        return marked.groupBy(window("at", "1 minute")).count().select("window.end", "count")

    def is_last(row: Any) -> bool:
        return bool(row["end"].year > 2026)

    source = Source([], schema=SCHEMA, time="at")
    end = {"orders": {"at": "2100-01-01 00:00:00"}}
    arguments: dict[str, Any] = {"end": end, "leave_out": is_last}
    with StreamTrial(own, {"orders": source}, spark=spark, **arguments) as trial:
        trial.batch(orders=[order(1, 5), order(2, 70)])
        assert len(trial.check().rows()) == 2
