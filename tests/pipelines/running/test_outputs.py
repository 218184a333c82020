"""Several outputs as one DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.outputs import (
    checked,
    combine,
    rows_of,
    unite,
    without_watermark,
)
from millstream.pipelines.windows import tumbling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def declared() -> Pipeline:
    writes = {"all": table("everything"), "large": topic("large")}
    return pipeline(reads=topic("in"), writes=writes, name="p")(lambda frame: frame)


def test_frames_by_name_are_united_and_found_again(spark: SparkSession, declared: Pipeline) -> None:
    numbers = spark.range(4)
    large = numbers.where("id > 2").selectExpr("id", "'much' as word")
    united = unite(declared, {"large": large, "all": numbers})
    assert sorted(row.id for row in rows_of(united, "all").collect()) == [0, 1, 2, 3]
    assert [tuple(row) for row in rows_of(united, "large").collect()] == [(3, "much")]


def test_frame_of_structs_is_taken_as_it_is(spark: SparkSession, declared: Pipeline) -> None:
    tagged = spark.range(4).selectExpr(
        "struct(id) as all", "case when id > 2 then struct(id, 'much' as word) end as large"
    )
    assert checked(declared, tagged) is tagged
    assert [tuple(row) for row in rows_of(tagged, "large").collect()] == [(3, "much")]


def test_result_of_another_shape_is_refused(spark: SparkSession, declared: Pipeline) -> None:
    stream: Any = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="returns large, and its outputs are all, large"):
        combine(declared, {"large": stream})
    with pytest.raises(ConfigError, match="should return a struct column for each of all, large"):
        combine(declared, stream)
    one = declared.variant("one", writes=table("t"))
    with pytest.raises(ConfigError, match="returns several DataFrames and declares one output"):
        combine(one, {"large": stream})
    assert combine(one, stream) is stream


def test_watermark_that_the_reader_adds_is_not_written(
    spark: SparkSession, declared: Pipeline
) -> None:
    frame = spark.range(2).selectExpr("id", "current_timestamp() as _watermark")
    assert without_watermark(frame).columns == ["id"]
    structs = frame.selectExpr("struct(*) as all", "struct(id) as large")
    written = without_watermark(checked(declared, structs))
    assert rows_of(written, "all").columns == ["id"]
    assert rows_of(written, "large").columns == ["id"]


def test_two_counts_of_one_name_are_refused_with_what_to_do(
    spark: SparkSession, declared: Pipeline
) -> None:
    rate: Any = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    marked = rate.withColumn("_watermark", rate.timestamp)
    of_all = tumbling("1 minute", time="timestamp", n="count(*)")
    of_each = tumbling("1 minute", time="timestamp", key="value", n="count(*)")
    with pytest.raises(ConfigError, match=r"one name, late\.tumbling 1 minute: .*count_as="):
        combine(declared, {"all": of_all(marked), "large": of_each(marked)})
    named = tumbling("1 minute", time="timestamp", key="value", n="count(*)", count_as="late.each")
    combine(declared, {"all": of_all(marked), "large": named(marked)})


def test_rows_are_not_compared_by_their_watermark(spark: SparkSession, declared: Pipeline) -> None:
    """It differs between batches, so copies of a row would pass as different ones."""
    one = declared.variant("one", writes=table("t"))
    rate: Any = spark.readStream.format("rate").load()
    marked = rate.withColumn("_watermark", rate.timestamp)
    for frame in (marked.distinct(), marked.dropDuplicates().where("value > 1")):
        with pytest.raises(ConfigError, match=r'frame\.drop\("_watermark"\) before'):
            combine(one, frame)
    assert combine(one, marked.dropDuplicates(["value"])).columns == ["timestamp", "value"]
