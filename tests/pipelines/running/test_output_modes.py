"""The output mode that fits, for plans of a stream that nobody starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.output_modes import choose_output_mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declared(key: str = "", output_mode: str | None = None) -> Pipeline:
    writes = table("t", key=key) if key else table("t")
    declare = pipeline(reads=topic("in"), writes=writes, name="p", output_mode=output_mode)
    return declare(lambda frame: frame)


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("value").count()


def windowed(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("timestamp", "1 minute").groupBy("timestamp").count()


def sessions(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import session_window

    late = frame.withWatermark("timestamp", "1 minute")
    return late.groupBy(session_window("timestamp", "1 minute"), "value").count()


def final_windows(frame: DataFrame) -> DataFrame:
    from millstream.pipelines.windows import tumbling

    late = frame.withWatermark("timestamp", "1 minute")
    late = late.selectExpr("*", "cast(null as timestamp) as _watermark")
    return late.transform(tumbling("1 minute", time="timestamp", n="count(*)"))


def heavy(frame: DataFrame) -> DataFrame:
    """An aggregate behind state in buckets."""
    from millstream.pipelines.analytics import heavy_hitters
    from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER

    before = str(frame.sparkSession.conf.get(STORE_PROVIDER))
    frame.sparkSession.conf.set(STORE_PROVIDER, ROCKSDB)
    late = frame.withWatermark("timestamp", "1 minute")
    found = late.transform(heavy_hitters, "1 minute", key="value", time="timestamp", by="value")
    frame.sparkSession.conf.set(STORE_PROVIDER, before)
    return found


@pytest.mark.parametrize(
    ("function", "key", "mode"),
    [
        (lambda frame: frame, "", "append"),
        (lambda frame: frame, "value", "append"),
        (lambda frame: frame.dropDuplicates(["value"]), "value", "append"),
        (counted, "value", "update"),
        (windowed, "timestamp", "update"),
        (windowed, "", "append"),
        (sessions, "value", "append"),
        (final_windows, "window_start", "append"),
        (heavy, "window_start", "append"),
    ],
)
def test_mode_fits_the_plan_and_the_output(
    stream: DataFrame, function: Callable[[Any], Any], key: str, mode: str
) -> None:
    assert choose_output_mode(declared(key), function(stream)) == mode


def test_rows_beside_an_aggregate_with_a_key_need_none(stream: DataFrame) -> None:
    writes = {"counts": table("c", key="value"), "rows": table("r")}
    several = pipeline(reads=topic("in"), writes=writes, name="p")(lambda frame: frame)
    assert choose_output_mode(several, {"counts": counted(stream), "rows": stream}) == "update"
    with pytest.raises(ConfigError, match="into an output without a key"):
        choose_output_mode(several, {"counts": stream, "rows": counted(stream)})


def test_aggregate_that_is_never_final_needs_a_key_or_a_watermark(stream: DataFrame) -> None:
    with pytest.raises(
        ConfigError, match=r"without a watermark it is never final.*or give the out"
    ):
        choose_output_mode(declared(), counted(stream))


def test_aggregate_of_a_table_that_stands_still_does_not_count(
    spark: SparkSession, stream: DataFrame
) -> None:
    still = spark.range(5).groupBy("id").count().withColumnRenamed("id", "value")
    assert choose_output_mode(declared(), stream.join(still, "value")) == "append"


@pytest.mark.parametrize(
    ("filtered", "is_refused"),
    [
        (lambda frame: counted(frame).where("count > 1"), True),
        (lambda frame: counted(frame).selectExpr("value", "count + 1 as n").where("n > 1"), True),
        (lambda frame: counted(frame).where("value > 1"), False),
        (lambda frame: counted(frame).selectExpr("value + 1 as v", "count").where("v > 1"), False),
        (lambda frame: counted(frame.where("value > 1")), False),
    ],
)
def test_aggregate_filtered_by_a_value_that_changes_is_refused_in_update_mode(
    stream: DataFrame, filtered: Callable[[Any], Any], is_refused: bool
) -> None:
    if not is_refused:
        assert choose_output_mode(declared("value"), filtered(stream)) == "update"
        return
    with pytest.raises(ConfigError, match=r"rows of t that no longer pass.*delete=\"gone\""):
        choose_output_mode(declared("value"), filtered(stream))
    given = declared("value", output_mode="update")
    assert choose_output_mode(given, filtered(stream)) == "update"


def test_mode_that_is_given_is_taken(stream: DataFrame) -> None:
    assert choose_output_mode(declared(output_mode="complete"), counted(stream)) == "complete"
