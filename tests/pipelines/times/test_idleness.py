"""The watermark of an idle topic advances; that of a query that is behind does not."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.times import with_idle_watermark
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.running.test_progress import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 40


def counted(source: str) -> Pipeline:
    reads = topic(
        source,
        schema="n long not null, at timestamp",
        watermark=("at", "1 minute"),
        idle_after="1 second",
        options={"maxOffsetsPerTrigger": ROWS // 4},
    )

    def counts(events: DataFrame) -> DataFrame:
        from pyspark.sql.functions import window

        assert events.columns == ["n", "at"]
        counts = events.groupBy(window("at", "1 minute").alias("period")).count()
        return counts.selectExpr("period.start as minute", "count")

    declared = pipeline(
        reads=reads, writes=table("counts", key="minute"), name=source, output_mode="append"
    )
    return declared(counts)


def test_backlog_loses_no_row_and_its_last_windows_close_while_the_topic_is_idle(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Rows of the last hour, in order, in four batches: none is late, though all are old."""
    source = topics.create()
    now = datetime.now(UTC)
    times = [now - timedelta(minutes=60 - number) for number in range(ROWS)]
    values = [{"n": n, "at": at.isoformat()} for n, at in enumerate(times)]
    topics.fill(source, [json.dumps(it).encode() for it in values])
    where: dict[str, Any] = {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    declared = counted(source)

    def total() -> int:
        with sqlite3.connect(tmp_path / "store.db") as store:
            there = store.execute("select 1 from sqlite_master where name = 'counts'").fetchone()
            found = store.execute("select sum(count) from counts").fetchone() if there else (0,)
        return int(found[0] or 0)

    query = declared.start(spark, trigger="100 milliseconds", **where)
    try:
        deadline = datetime.now(UTC) + timedelta(seconds=PATIENCE_SECONDS)
        while total() < ROWS:
            assert query.exception() is None
            assert datetime.now(UTC) < deadline, f"{total()} of {ROWS} rows are counted"
            query.awaitTermination(1)
        operators = [it for progress in query.recentProgress for it in progress.stateOperators]
    finally:
        query.stop()
    assert sum(it.numRowsDroppedByWatermark for it in operators) == 0
    assert committed(topics, declared.group_id, source) == {0: ROWS}
    later = {"n": ROWS, "at": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    topics.fill(source, [json.dumps(later).encode()])
    run_to_end(lambda: declared.start(spark, once=True, **where))
    assert total() == ROWS, "the next one waits for the watermark"
    assert committed(topics, declared.group_id, source) == {0: ROWS + 1}


def test_watermark_without_ticks_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match=r"no column _idle.*topic\(\.\.\., idle_after"):
        with_idle_watermark(stream, "timestamp", "5 minutes")
    with pytest.raises(ConfigError, match="idle_after needs a schema and a watermark"):
        topic("events", schema="at timestamp", idle_after="1 minute")
