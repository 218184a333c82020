"""`format("millstream")` on a real broker, in batches and in streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipelines.conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, topics: Topics, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("millstream").option("kafka.bootstrap.servers", topics.bootstrap)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.option("subscribe", topic).load()


def test_batch_reads_all_records_with_the_connectors_columns(
    spark: SparkSession, topics: Topics
) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, [b"a", None], partition=0)
    topics.fill(topic, [b"c"], partition=1)
    rows = read(spark, topics, topic).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (0, 0, b"a"),
        (0, 1, None),
        (1, 0, b"c"),
    ]
    assert {row.topic for row in rows} == {topic}
    assert [row.key for row in rows] == [b"0", b"1", b"0"]


def test_batch_reads_between_given_offsets_in_as_many_tasks_as_asked(
    spark: SparkSession, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % i for i in range(10)])
    frame = read(
        spark,
        topics,
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 8}}}}',
        minPartitions="3",
    )
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.offset for row in frame.collect()) == [2, 3, 4, 5, 6, 7]


def test_stream_goes_on_where_its_checkpoint_ended(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()

    def run_once() -> list[bytes]:
        frame = (
            spark.readStream.format("millstream")
            .option("kafka.bootstrap.servers", topics.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "3")
            .load()
        )
        seen: list[bytes] = []
        query = (
            frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: seen.extend(row.value for row in batch.collect()))
            .start()
        )
        query.awaitTermination(60)
        return sorted(seen)

    topics.fill(topic, [b"%d" % i for i in range(5)])
    assert run_once() == [b"0", b"1", b"2", b"3", b"4"]
    topics.fill(topic, [b"more"])
    assert run_once() == [b"more"]
