"""A source that is idle does not hold the watermark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.event_time.idleness import with_heartbeat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_SECONDS_MAX = 120


def test_watermark_of_an_idle_source_moves_on_and_no_tick_comes_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    rows = spark.createDataFrame([(long_ago, 1)], "at timestamp, n int")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("at timestamp, n int").parquet(str(tmp_path / "in"))
    watched = frame.transform(with_heartbeat, "at", "10 seconds", "1 minute")
    counts = watched.groupBy("at").count()
    writer = counts.writeStream.format("memory").queryName("idle").outputMode("append")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        deadline = datetime.now(UTC) + timedelta(seconds=QUERY_SECONDS_MAX)
        while not spark.table("idle").count():  # the row's group closes when the watermark passes
            assert query.exception() is None
            assert datetime.now(UTC) < deadline, "the watermark stands still"
            query.awaitTermination(1)
        assert [row["count"] for row in spark.table("idle").collect()] == [1]
    finally:
        query.stop()


def test_source_that_would_be_idle_too_soon_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="shorter than the delay"):
        with_heartbeat(stream, "timestamp", "5 minutes", "1 minute")
    batch = spark.createDataFrame([], "at timestamp")
    assert with_heartbeat(batch, "at", "1 minute") is batch
