"""Column arguments of operators: which are accepted, and which are refused, with the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    check_lateness,
    check_time,
    check_watermark,
    kind_of,
    listed,
    name_column,
    watermark_delay_ms,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [], "id long, text string, day int, local timestamp_ntz, x double, sold_at timestamp"
    )


@pytest.fixture
def live(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def test_column_is_given_by_name_or_made(sales: DataFrame) -> None:
    assert name_column(sales, None) == (sales, None)
    assert name_column(sales, "id") == (sales, "id")
    frame, name = name_column(sales, (sales.id * 2).alias("twice"))
    assert (name, frame.columns[-1]) == ("twice", "twice")
    with pytest.raises(ConfigError, match="no column 'town': id, text"):
        kind_of(sales, "town")


@pytest.mark.parametrize("given", [None, 5, ["user", 5], {"user"}])
def test_columns_are_one_or_several_in_an_order(given: Any) -> None:
    assert (listed("user"), listed(("user", "day"))) == (["user"], ["user", "day"])
    with pytest.raises(ConfigError, match="is no column: give a name, a Column, or several"):
        listed(given)


@pytest.mark.parametrize(
    ("time", "fix"),
    [
        ("text", "text is string: convert it with to_timestamp(text)"),
        ("id", "timestamp_millis(id)"),
        ("day", "timestamp_seconds(day)"),
        ("local", "to_utc_timestamp(local"),
        ("x", "cast(x as timestamp)"),
        ("nowhere", "there is no column 'nowhere': id, text"),
    ],
)
def test_time_of_a_wrong_type_is_refused_with_the_way_to_convert_it(
    sales: DataFrame, time: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_time(sales, time)
    assert fix in str(refused.value)


def test_time_may_be_an_expression_and_be_without_a_zone_where_that_does_no_harm(
    sales: DataFrame,
) -> None:
    assert check_time(sales, "sold_at") == "sold_at"
    assert check_time(sales, sales.text.try_cast("timestamp").alias("told")) == "told"
    assert check_time(sales, "local", zoneless_allowed=True) == "local"


def test_stream_without_a_watermark_is_refused(sales: DataFrame, live: DataFrame) -> None:
    marked = live.withWatermark("timestamp", "1 minute")
    check_watermark(sales, "sold_at", "it would wait")
    check_watermark(marked, "timestamp", "it would wait")
    assert watermark_delay_ms(marked, "timestamp") == 60_000
    with pytest.raises(ConfigError, match="needs a watermark on timestamp, or else it would wait"):
        check_watermark(live, "timestamp", "it would wait")


def test_lateness_smaller_than_the_watermark_is_refused(sales: DataFrame, live: DataFrame) -> None:
    marked = live.withWatermark("timestamp", "10 minutes")
    for allowed_us in (0, 10 * MINUTE_US, 60 * MINUTE_US):
        check_lateness(marked, "timestamp", allowed_us)
    check_lateness(live, "timestamp", 5 * SECOND_US)
    check_lateness(sales, "sold_at", 5 * SECOND_US)
    with pytest.raises(ConfigError) as refused:
        check_lateness(marked, "timestamp", 5 * SECOND_US)
    message = str(refused.value)
    assert "'5 seconds' is smaller than the watermark's delay of 10 minutes" in message
    assert "could be 10 minutes 5 seconds late" in message
    assert 'shorten the delay in withWatermark("timestamp", ...)' in message
