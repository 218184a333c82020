"""Records that did not decode, in the progress of a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipelines.reading.counting import count_failures
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_failures_are_counted_in_the_progress_of_a_stream(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, [b'{"id": 0}', b"{}{}", b'{"id": "2"}', None, b'{"id": 4}'])
    topics.fill(topic, [b"bad", b"worse"], partition=1)
    frame = (
        spark.readStream.format("millstream")
        .schema("id long, name string, _error string")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("mode", "drop")
        .load()
    )
    writer = (
        count_failures(frame)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = run_to_end(writer.start)
    observed: list[Any] = [it.observedMetrics["millstream"] for it in query.recentProgress]
    assert sum(it.records for it in observed) == 7
    assert sum(it.failed for it in observed) == 4
