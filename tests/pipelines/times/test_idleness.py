"""A source that is idle does not hold the watermark."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.times import with_heartbeat
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.running.test_progress import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def test_pipeline_with_a_heartbeat_writes_a_table_and_goes_on_after_a_restart(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Its ticks are a source of another kind, with another kind of offsets."""
    source = topics.create()

    def watched(events: DataFrame) -> DataFrame:
        return events.transform(with_heartbeat, "at", "10 seconds").select("n")

    reads = topic(source, schema="at timestamp, n long")
    declared = pipeline(reads=reads, writes=table("seen", key="n"), name=source)(watched)
    where = {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    for number in (1, 2):
        topics.fill(source, [b'{"at": "2026-03-01T12:00:00Z", "n": %d}' % number])
        run_to_end(lambda: declared.start(spark, once=True, **where))
    with sqlite3.connect(tmp_path / "store.db") as store:
        assert sorted(store.execute("select n from seen")) == [(1,), (2,)]
    assert committed(topics, declared.group_id, source) == {0: 2}


def test_source_that_would_be_idle_too_soon_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="shorter than the delay"):
        with_heartbeat(stream, "timestamp", "5 minutes", "1 minute")
    batch = spark.createDataFrame([], "at timestamp")
    assert with_heartbeat(batch, "at", "1 minute") is batch
