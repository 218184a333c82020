"""`format("millstream")` on a real broker, in batches and in streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import SCRAM_MODULE, password_of, start_secured
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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


def test_batch_of_an_empty_topic_has_no_rows(spark: SparkSession, topics: Topics) -> None:
    assert read(spark, topics, topics.create()).collect() == []


def test_batch_gives_headers_where_they_are_asked_for(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, b"v", headers=[("a", b"1"), ("b", None)])
    producer.produce(topic, b"w")
    producer.flush(60)
    rows = read(spark, topics, topic, includeHeaders="true").orderBy("offset").collect()
    assert [[tuple(header) for header in row.headers] for row in rows] == [
        [("a", b"1"), ("b", None)],
        [],
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingOfsets": "x"}, "option startingofsets is not known; did you mean startingOff"),
        ({"subscribe": "nowhere"}, "there is no topic nowhere at .*; create it first"),
        ({"kafka.bootstrap.servers": "nonsense"}, "'nonsense' is not an address; write host:port"),
    ],
)
def test_errors_reach_the_user_in_our_words(
    spark: SparkSession, topics: Topics, options: dict[str, str], complaint: str
) -> None:
    given = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": topics.create(),
    } | options
    with pytest.raises(AnalysisException, match=complaint):
        spark.read.format("millstream").options(**given).load().collect()
    stream = spark.readStream.format("millstream").options(**given).load()
    with pytest.raises(StreamingQueryException, match=complaint):
        run_to_end(stream.writeStream.format("noop").trigger(availableNow=True).start)


def stream_once(
    spark: SparkSession,
    source: str,
    bootstrap: str,
    topic: str,
    checkpoint: Path,
    **options: str,
) -> list[bytes]:
    """Read what there is now, and say which values that was."""
    given = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    } | options
    seen: list[bytes] = []
    writer = (
        spark.readStream.format(source)
        .options(**given)
        .load()
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, _: seen.extend(row.value for row in batch.collect()))
    )
    run_to_end(writer.start)
    return sorted(seen)


def test_stream_goes_on_where_its_checkpoint_ended(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % i for i in range(5)])

    def run() -> list[bytes]:
        limit = {"maxOffsetsPerTrigger": "3"}
        return stream_once(
            spark, "millstream", topics.bootstrap, topic, tmp_path / "checkpoint", **limit
        )

    assert run() == [b"0", b"1", b"2", b"3", b"4"]
    topics.fill(topic, [b"more"])
    assert run() == [b"more"]


@pytest.mark.slow
def test_stream_whose_first_batch_was_cut_off_reads_no_history(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Spark asks again where it began, and gets another end of the topic."""
    topic = topics.create()
    topics.fill(topic, [b"old"] * 5)
    reader = spark.readStream.format("millstream").option("subscribe", topic)
    frame = reader.option("kafka.bootstrap.servers", topics.bootstrap).load()

    def refuse(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("cut off")

    def start(use: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.foreachBatch(use).trigger(processingTime="0 seconds").start()

    query = start(refuse)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while query.isActive:  # it may not have looked for the end yet
        topics.fill(topic, [b"first"])
        assert time.monotonic() < deadline, "there is no first batch"
        time.sleep(0.2)
    topics.fill(topic, [b"new"])
    found: list[bytes] = []
    query = start(lambda batch, _: found.extend(row.value for row in batch.collect()))
    try:
        while b"new" not in found:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
    finally:
        query.stop()
    assert b"old" not in found


@pytest.mark.slow
def test_stream_reports_how_far_it_lags(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 5)
    given = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3",
    }
    stream = spark.readStream.format("millstream").options(**given).load()
    query = run_to_end(stream.writeStream.format("noop").trigger(availableNow=True).start)
    first = query.recentProgress[0].sources[0]
    assert json.loads(first.endOffset) == {topic: {"0": 3}}
    assert json.loads(first.latestOffset) == {topic: {"0": 5}}


def test_stream_reports_lost_records_and_continues_if_allowed(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"0", b"1"])

    def run(**options: str) -> list[bytes]:
        return stream_once(
            spark, "millstream", topics.bootstrap, topic, tmp_path / "checkpoint", **options
        )

    assert run() == [b"0", b"1"]
    topics.fill(topic, [b"2", b"3", b"4"])
    topics.delete_records(topic, 4)
    with pytest.raises(StreamingQueryException, match=rf"{topic}-0 offsets 2 to 3.*retention.ms"):
        run()
    assert run(failOnDataLoss="false") == [b"4"]


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.usefixtures("connector")
def test_stream_takes_over_the_checkpoint_of_sparks_own_connector(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)

    def run(source: str) -> list[bytes]:
        return stream_once(spark, source, topics.bootstrap, topic, tmp_path / "checkpoint")

    topics.fill(topic, [b"a0", b"a1"], partition=0)
    topics.fill(topic, [b"b0"], partition=1)
    assert run("kafka") == [b"a0", b"a1", b"b0"]
    topics.fill(topic, [b"b1", b"b2"], partition=1)
    assert run("millstream") == [b"b1", b"b2"]
    assert run("millstream") == []
    # And back again: the offsets are the same.
    topics.fill(topic, [b"a2"], partition=0)
    assert run("kafka") == [b"a2"]


OPEN = {"allow.everyone.if.no.acl.found": "true"}


@pytest.mark.slow
@pytest.mark.java
def test_source_reads_apache_kafka_as_well(spark: SparkSession, tmp_path: Path) -> None:
    kafka = start_secured("apache-kafka", tmp_path, settings=OPEN)
    kafka.add_scram_user("ann")
    server = kafka.server
    try:
        topics = Topics(server)
        topic = topics.create(partitions=2)
        topics.fill(topic, [b"a", b"b"], partition=0)
        topics.fill(topic, [b"c", b"d", b"e"], partition=1)
        producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "t"})
        producer.init_transactions(60)
        for value, commit in ((b"never", False), (b"f", True)):
            producer.begin_transaction()
            producer.produce(topic, value, partition=0)
            producer.flush(60)
            (producer.commit_transaction if commit else producer.abort_transaction)(60)
        values = sorted(row.value for row in read(spark, topics, topic).collect())
        assert values == [b"a", b"b", b"c", b"d", b"e", b"f"]
        secure = {
            "kafka.bootstrap.servers": kafka.address("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(kafka.certificates.authority),
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="ann" '
            f'password="{password_of("ann")}";',
        }
        assert read(spark, topics, topic, **secure).count() == len(values)
        checkpoint = tmp_path / "checkpoint"
        limit = {"maxOffsetsPerTrigger": "3", "minPartitions": "4"}
        assert (
            stream_once(spark, "millstream", server.bootstrap, topic, checkpoint, **limit) == values
        )
        topics.delete_records(topic, 2, partition=1)
        strict = {"startingOffsets": f'{{"{topic}": {{"0": 0, "1": 1}}}}'}
        with pytest.raises(AnalysisException, match=rf"{topic}-1 offsets 1 to 1"):
            read(spark, topics, topic, **strict).collect()
    finally:
        server.stop()
