"""The column `_watermark`: not among the columns, but where late rows are detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.hidden import (
    cut_watermark,
    hide_again,
    hide_watermark,
    show_watermark,
)
from millstream.pipelines.times import mark_late
from millstream.pipelines.windows import tumbling
from tests.pipelines.conftest import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[["DataFrame", "DataFrame"], "DataFrame"]


def stream(spark: SparkSession, *, marked: bool = True) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    if marked:
        rate = rate.selectExpr("*", "timestamp as _watermark")
    return hide_watermark(rate.withWatermark("timestamp", "1 second"))


def test_hidden_column_is_not_among_the_columns_and_found_by_name(spark: SparkSession) -> None:
    frame = stream(spark)
    assert frame.columns == ["timestamp", "value"]
    assert frame.selectExpr("to_json(struct(*)) as it", "xxhash64(*) as hash").columns
    assert frame.selectExpr("struct(*) as it").select("it.*").columns == frame.columns
    assert frame.where("value > 1").select("value", "_watermark").columns == ["value", "_watermark"]
    assert frame.union(stream(spark, marked=False)).columns == frame.columns


STEPS: dict[str, Step] = {
    "as it is": lambda frame, _: frame,
    "columns chosen": lambda frame, _: frame.selectExpr("value as v", "timestamp").where("v > 1"),
    "dropped": lambda frame, _: frame.drop("_watermark"),
    "repeated": lambda frame, _: frame.transform(mark_late, "1 second", time="timestamp"),
    "view": lambda frame, _: _as_view(frame),
    "named query": lambda frame, _: _named(frame, "select timestamp, value from it"),
    "named query, joined with itself": lambda frame, _: _named(
        frame, "select a.timestamp, value from it a join it b using (value)"
    ),
    "distinct": lambda frame, _: frame.distinct(),
    "union": lambda frame, other: frame.union(other).where("value > 1"),
    "union with itself": lambda frame, _: frame.union(frame.where("value > 1")),
    "join": lambda frame, other: frame.join(other, "value").drop(other.timestamp),
    "join with itself": lambda frame, _: (
        frame.alias("a").join(frame.alias("b"), "value").select("value", "a.timestamp")
    ),
    "static join from the right": lambda frame, _: (
        frame.sparkSession.range(3).withColumnRenamed("id", "value").join(frame, "value")
    ),
    "static join": lambda frame, _: frame.join(
        frame.sparkSession.range(3).withColumnRenamed("id", "value"), "value", "left"
    ),
}  # fmt: skip


def _as_view(frame: DataFrame, how: str = "") -> DataFrame:
    frame.createOrReplaceTempView("hidden_rows")
    return frame.sparkSession.sql(f"select {how} timestamp, value from hidden_rows where value > 1")


def _named(frame: DataFrame, query: str) -> DataFrame:
    frame.createOrReplaceTempView("hidden_rows")
    return frame.sparkSession.sql(f"with it as (select * from hidden_rows where value > 1) {query}")


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_column_follows_the_rows(spark: SparkSession, step: Step) -> None:
    made = step(stream(spark), stream(spark))
    assert "_watermark" not in made.columns
    shown = show_watermark(made)
    assert shown.columns == [*made.columns, "_watermark"]
    assert shown.schema["_watermark"].metadata == {}
    made.transform(tumbling("1 minute", time="timestamp", n="count(*)"))
    assert hide_again(shown, made).columns == made.columns
    assert hide_again(shown, shown) is shown


LOST: dict[str, Step] = {
    "aggregate": lambda frame, _: frame.groupBy("timestamp").count(),
    "distinct in SQL": lambda frame, _: _as_view(frame, "distinct"),
    "Python": lambda frame, _: frame.mapInArrow(lambda batches: batches, frame.schema),
    "one side without": lambda frame, other: frame.union(other),
    "rows that waited": lambda frame, other: frame.join(other, "value", "left").drop(other.value),
    "cut": lambda frame, _: cut_watermark(frame).where("value > 1"),
}


@pytest.mark.parametrize("step", LOST.values(), ids=LOST.keys())
def test_column_of_other_rows_is_not_taken(spark: SparkSession, step: Step) -> None:
    made = step(stream(spark), stream(spark, marked=False))
    assert show_watermark(made) is made
    with pytest.raises(ConfigError, match=r"a stream needs the column _watermark"):
        mark_late(made, "1 second", time=made[made.columns[0]].cast("timestamp").alias("it"))


def test_joined_row_has_the_watermark_of_the_later_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its other row may have waited in state, with the watermark of an earlier batch."""
    sides = []
    for moment in (5, 7):
        path = str(tmp_path / str(moment))
        spark.range(1).write.parquet(path)
        read = spark.readStream.schema("id long").parquet(path)
        sides.append(
            hide_watermark(read.selectExpr("*", f"timestamp_seconds({moment}) _watermark"))
        )
    for name, made, expected in (
        ("united", sides[0].union(sides[1]), [5, 7]),
        ("joined", sides[0].join(sides[1], "id"), [7]),
    ):
        shown = show_watermark(made).selectExpr("unix_seconds(_watermark) as at")
        writer = shown.writeStream.format("memory").queryName(f"hidden_{name}")
        run_to_end(writer.trigger(availableNow=True).start)
        assert sorted(row.at for row in spark.table(f"hidden_{name}").collect()) == expected
