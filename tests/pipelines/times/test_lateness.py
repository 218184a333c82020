"""The watermark is in the checkpoint before a batch is planned; rows are marked late by it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.times import mark_late
from tests.pipelines.conftest import Topics
from tests.pipelines.windows.streams import END, Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def test_watermark_of_a_batch_stands_in_the_checkpoint_before_its_partitions_are_planned(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """The reader refuses a batch whose offsets it does not find there; and what it puts into the
    rows is what Spark then says that the batch ran with."""
    topic = topics.create()
    checkpoint = str(tmp_path / "checkpoint")
    frame = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("checkpointLocation", checkpoint)
        .schema("at timestamp, _watermark timestamp")
        .load()
        .withWatermark("at", "10 seconds")
    )
    found: dict[int, set[str | None]] = {}

    def keep(rows: DataFrame, batch_id: int) -> None:
        found[batch_id] = {row.mark for row in rows.selectExpr("string(_watermark) mark").collect()}

    def step(seconds: int) -> None:
        at = (BEGIN + timedelta(seconds=seconds)).isoformat()
        topics.fill(topic, [json.dumps({"at": at}).encode()])
        writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()  # a restart every time
        query.awaitTermination()

    for seconds in (60, 30, 120, 5):
        step(seconds)
    batches = sorted(found)
    assert found[batches[0]] == {None}
    told = {
        number: json.loads(
            (tmp_path / "checkpoint/offsets" / str(number)).read_text().split("\n")[1]
        )
        for number in batches
    }
    for number in batches:
        expected = told[number]["batchWatermarkMs"]
        shown = {datetime.fromtimestamp(expected / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")}
        assert found[number] in ({None} if not expected else shown, set())
    shown_at_all = set().union(*found.values())
    assert shown_at_all == {None, "2026-01-01 00:00:50", "2026-01-01 00:01:50"}


def test_stream_that_wants_its_watermark_without_a_checkpoint_is_refused(
    spark: SparkSession, topics: Topics
) -> None:
    from pyspark.errors import StreamingQueryException

    frame = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("subscribe", topics.create())
        .option("valueFormat", "json")
        .schema("at timestamp, _watermark timestamp")
        .load()
    )
    query = frame.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="the same checkpointLocation as the writer"):
        query.processAllAvailable()


def test_rows_are_late_when_their_time_and_the_interval_are_behind_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path)
    files.write(
        [
            [("ann", 100, 0.5)],
            [("ann", 50, 1.0), ("ann", 60, 2.0), ("ann", 60.5, 3.0), ("ann", None, 4.0)],
            [END],
        ]
    )
    marked = files.stream("10 seconds").transform(mark_late, "30 seconds", time="time")
    rows = files.run(marked).rows
    found = {row.amount: (row["_late"], row["_lateness"]) for row in rows if row.user == "ann"}
    assert found == {
        0.5: (False, None),
        1.0: (True, 40.0),
        2.0: (True, 30.0),
        3.0: (False, 29.5),
        4.0: (True, None),
    }
    history = files.history().transform(mark_late, "30 seconds", time="time").collect()
    assert {row.amount for row in history if row["_late"]} == {4.0}


def test_what_is_no_time_or_no_duration_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "text string, at timestamp")
    with pytest.raises(ConfigError, match=r"to_timestamp\(text\)"):
        mark_late(frame, "1 minute", time="text")
    with pytest.raises(ConfigError, match="no duration"):
        mark_late(frame, "a while", time="at")
