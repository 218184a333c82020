"""Writing through a real Spark into a real broker."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.client.cluster import Cluster
from millstream.client.transactions import add_partitions, begin_transaction, open_transactions
from millstream.errors import ConfigError
from millstream.pipelines.writing.decisions import DecisionLog
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_committed(bootstrap: str, topic: str, *, at_least: int = 0) -> list[Any]:
    """All messages of all partitions that a read-committed consumer sees.

    A commit is answered before its markers are written, and until then the topic ends before what
    was committed: so read on until there are as many as there must be.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "any",
            "enable.partition.eof": True,
            "enable.auto.commit": False,  # else its close waits for the group's coordinator
        }
    )
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, it, OFFSET_BEGINNING) for it in partitions])
    messages, open_partitions = [], set(partitions)
    while open_partitions or len(messages) < at_least:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"no end after {at_least} messages, only {len(messages)} came"
        if message.error():
            open_partitions.discard(message.partition())
        else:
            messages.append(message)
            open_partitions.add(message.partition())  # its end is told again
    consumer.close()
    return messages


def values_of(topics: Topics, topic: str, *, at_least: int = 0) -> list[bytes]:
    messages = read_committed(topics.bootstrap, topic, at_least=at_least)
    return sorted(it.value() for it in messages)


def write(frame: DataFrame, topics: Topics, topic: str | None, **options: str) -> None:
    writer = frame.write.format("millstream").mode("append")
    writer = writer.option("kafka.bootstrap.servers", topics.bootstrap).options(**options)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.save()


def stream(spark: SparkSession, topics: Topics, source: str) -> DataFrame:
    return (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )


def run_available(
    frame: DataFrame,
    topics: Topics,
    topic: str,
    checkpoint: Path,
    *,
    source_format: str = "millstream",
    **options: str,
) -> None:
    """All that is there now, as a stream."""
    writer = (
        frame.writeStream.format(source_format)
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
    )
    run_to_end(writer.start)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_write_of_a_batch_puts_all_rows_into_the_topic(
    spark: SparkSession, topics: Topics, delivery: str
) -> None:
    topic = topics.create(3)
    frame = spark.range(5000).selectExpr("cast(id as string) key", "cast(id as string) value")
    write(frame, topics, topic, delivery=delivery)
    messages = read_committed(topics.bootstrap, topic, at_least=5000)
    assert sorted(int(it.value()) for it in messages) == list(range(5000))
    assert all(it.key() == it.value() for it in messages)


def test_write_chooses_partitions_as_the_java_client(spark: SparkSession, topics: Topics) -> None:
    from confluent_kafka import Producer

    ours, theirs = topics.create(7), topics.create(7)
    frame = spark.range(500).selectExpr("concat('k', id) key", "cast(id as string) value")
    write(frame, topics, ours)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "partitioner": "murmur2"})
    for number in range(500):
        producer.produce(theirs, str(number), key=f"k{number}")
    producer.flush(30)
    found, expected = (
        {it.key(): it.partition() for it in read_committed(topics.bootstrap, name, at_least=500)}
        for name in (ours, theirs)
    )
    assert found == expected


def test_write_takes_topic_partition_timestamp_and_headers_from_columns(
    spark: SparkSession, topics: Topics
) -> None:
    one, other = topics.create(2), topics.create(2)
    frame = spark.range(10).selectExpr(
        "cast(id as string) value",
        f"if(id < 5, '{one}', '{other}') topic",
        "cast(id % 2 as int) partition",
        "timestamp_millis(1700000000000 + id) timestamp",
        "array(struct('h' as key, cast(concat('x', id) as binary) as value)) headers",
    )
    write(frame, topics, None)
    for topic, numbers in ((one, range(5)), (other, range(5, 10))):
        found = read_committed(topics.bootstrap, topic, at_least=5)
        messages = {int(it.value()): it for it in found}
        assert sorted(messages) == list(numbers)
        for number, message in messages.items():
            assert message.partition() == number % 2
            assert message.timestamp()[1] == 1700000000000 + number
            assert message.headers() == [("h", f"x{number}".encode())]


def test_write_spreads_rows_without_keys_over_partitions(
    spark: SparkSession, topics: Topics
) -> None:
    topic = topics.create(3)
    frame = spark.range(20_000).selectExpr("concat(id, repeat('x', 100)) value").coalesce(1)
    write(frame, topics, topic, **{"kafka.batch.size": "100000"})
    counts = [0, 0, 0]
    for message in read_committed(topics.bootstrap, topic, at_least=20_000):
        counts[message.partition()] += 1
    assert sum(counts) == 20_000
    assert min(counts) > 5000


def test_write_as_json_takes_all_columns_and_a_key_of_some(
    spark: SparkSession, topics: Topics
) -> None:
    topic = topics.create()
    frame = spark.range(3).selectExpr("id", "concat('user', id) name", "id * 1.5D amount")
    write(frame, topics, topic, valueFormat="json", keyColumns="id")
    messages = read_committed(topics.bootstrap, topic, at_least=3)
    rows = sorted((json.loads(it.value()) for it in messages), key=lambda row: row["id"])
    assert rows[1] == {"id": 1, "name": "user1", "amount": 1.5}
    assert sorted(it.key() for it in messages) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_write_compresses(spark: SparkSession, topics: Topics, codec: str) -> None:
    topic = topics.create()
    frame = spark.range(1000).selectExpr("repeat(cast(id as string), 20) value")
    write(frame, topics, topic, **{"kafka.compression.type": codec})
    assert len(values_of(topics, topic, at_least=1000)) == 1000


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        (["id"], {}, "no column value"),
        (["cast(id as string) value", "id extra"], {}, "extra would not be written"),
        (["id value"], {}, "must be string or binary"),
        (["cast(id as string) value"], {"toppic": "x"}, "did you mean topic"),
        (["cast(id as string) value"], {"delivery": "maybe"}, "exactly-once, at-least-once"),
        (["id"], {"valueFormat": "json", "keyColumns": "name"}, "keyColumns names name"),
    ],
)
def test_write_refuses_what_makes_no_records(
    spark: SparkSession,
    topics: Topics,
    columns: list[str],
    options: dict[str, str],
    complaint: str,
) -> None:
    with pytest.raises(Exception, match=complaint):
        write(spark.range(1).selectExpr(*columns), topics, "topic", **options)


def test_write_names_a_topic_that_is_not_there(spark: SparkSession, topics: Topics) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="there is no topic nowhere; create it first"):
        write(frame, topics, "nowhere")


def test_write_refuses_to_overwrite(spark: SparkSession, topics: Topics) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("millstream").mode("overwrite").options(
            **{"kafka.bootstrap.servers": topics.bootstrap, "topic": "any"}
        ).save()


@pytest.mark.parametrize(
    "delivery", [pytest.param("at-least-once", marks=pytest.mark.slow), "exactly-once"]
)
def test_stream_writes_every_row_once_and_shows_its_progress_as_a_group(
    spark: SparkSession, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    source, target = topics.create(2), topics.create(3)
    for partition in range(2):
        values = [f"{partition}-{number}".encode() for number in range(1000)]
        topics.fill(source, values, partition=partition)
    frame = stream(spark, topics, source).selectExpr("key", "value")
    group = f"group-{target}"
    options = {"delivery": delivery, "kafka.group.id": group}
    run_available(frame, topics, target, tmp_path / "checkpoint", **options)
    topics.fill(source, [b"later"])
    run_available(frame, topics, target, tmp_path / "checkpoint", **options)
    found = values_of(topics, target, at_least=2001)
    assert len(found) == len(set(found)) == 2001
    assert committed_offsets(topics, group, source, 2) == [1001, 1000]


def committed_offsets(topics: Topics, group: str, topic: str, partitions: int) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": topics.bootstrap, "group.id": group}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    asked = [TopicPartition(topic, it) for it in range(partitions)]
    found = consumer.committed(asked, PATIENCE_SECONDS)
    consumer.close()
    return [it.offset for it in found]


@pytest.fixture
def source(topics: Topics) -> str:
    name = topics.create(2)
    for partition in range(2):
        topics.fill(name, [f"{partition}-{it}".encode() for it in range(500)], partition=partition)
    return name


@pytest.mark.parametrize(
    "tasks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)]
)
def test_stream_writes_nothing_twice_when_a_decided_batch_is_replayed(
    spark: SparkSession, topics: Topics, source: str, tmp_path: Path, tasks: int
) -> None:
    target = topics.create(2)
    checkpoint = tmp_path / "checkpoint"
    frame = stream(spark, topics, source).selectExpr("value")
    run_available(frame, topics, target, checkpoint)
    forget_last_commit(checkpoint)
    run_available(frame.repartition(tasks), topics, target, checkpoint)
    found = values_of(topics, target, at_least=1000)
    assert len(found) == len(set(found)) == 1000


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died before Spark wrote down that the last batch is done."""
    last = max(int(it.name) for it in (checkpoint / "commits").iterdir() if it.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()


# Without Spark: what the driver does before a batch.


class Query:
    """Spark's part in a query: a checkpoint, and one task in every batch."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.topics, self.checkpoint = topics, directory / "checkpoint"
        self.location = str(self.checkpoint)
        self.target = topics.create(1)
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.target}))

    @property
    def task_prefix(self) -> str:
        return f"millstream-{self.target}-task-"

    def writer(self) -> Any:
        from pyspark.sql.types import StructType

        from millstream.pipelines.source import MillstreamSource

        options = {
            "kafka.bootstrap.servers": self.topics.bootstrap,
            "topic": self.target,
            "checkpointLocation": self.location,
            "kafka.transactional.id": f"millstream-{self.target}",
        }
        return MillstreamSource(options).streamWriter(StructType().add("value", "string"), False)

    def prepare(self, batch_id: int, ends: Any = None) -> Any:
        """What tasks are given."""
        offsets = json.dumps(ends or {self.target: {"0": batch_id + 1}})
        (self.checkpoint / f"offsets/{batch_id}").write_text(f"v1\n{{}}\n{offsets}")
        return pickle.loads(pickle.dumps(self.writer()))

    def write(self, prepared: Any, batch_id: int, rows: Iterator[Any] | None = None) -> Any:
        """What a task does; by default with one row, the number of the batch."""
        import pyarrow as pa
        from pyspark import TaskContext

        context: Any = TaskContext._getOrCreate()
        context._partitionId, context._attemptNumber = 0, 0
        query_id = json.loads((self.checkpoint / "metadata").read_text())["id"]
        context._localProperties = {
            "streaming.sql.batchId": str(batch_id),
            "sql.streaming.queryId": query_id,
        }
        row = pa.RecordBatch.from_pydict({"value": [str(batch_id)]})
        return prepared.write(iter([row]) if rows is None else rows)

    def commit(self, message: Any, batch_id: int) -> None:
        self.writer().commit([message], batch_id)
        (self.checkpoint / f"commits/{batch_id}").write_text("v1\n{}")

    def run(self, batch_id: int) -> Any:
        prepared = self.prepare(batch_id)
        self.commit(self.write(prepared, batch_id), batch_id)
        return prepared._plan


@pytest.fixture
def query(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "_taskContext", None)  # this process is no task afterwards
    return Query(topics, tmp_path)


def leave_open(query: Query) -> None:
    """As a task does that began when the batch was over."""
    with Cluster(query.topics.bootstrap) as cluster:
        transaction = begin_transaction(cluster, f"{query.task_prefix}0-1", 60_000)
        add_partitions(cluster, transaction, [(query.target, 0)])


def count_open(query: Query) -> int:
    with Cluster(query.topics.bootstrap) as cluster:
        return len(open_transactions(cluster, query.task_prefix))


def test_prepare_only_begins_a_transaction_after_a_batch_that_is_done(query: Query) -> None:
    first = query.run(0)
    leave_open(query)
    second = query.prepare(1)._plan
    assert second.decided_batch_id == 0
    assert second.driver == first.driver._replace(epoch=first.driver.epoch + 1)
    assert count_open(query) == 1  # it has not looked; the commit will
    query.commit(query.write(query.prepare(1), 1), 1)
    assert count_open(query) == 0
    assert values_of(query.topics, query.target, at_least=2) == [b"0", b"1"]


def test_prepare_looks_back_after_a_batch_that_is_not_done(query: Query) -> None:
    query.run(0)
    query.write(query.prepare(1), 1)
    again = query.prepare(1)
    assert count_open(query) == 0
    assert again._plan.decided_batch_id == 0
    query.commit(query.write(again, 1), 1)
    assert values_of(query.topics, query.target, at_least=2) == [b"0", b"1"]


def test_prepare_looks_back_when_another_driver_has_been_there(query: Query) -> None:
    first = query.run(0)
    leave_open(query)
    with Cluster(query.topics.bootstrap) as cluster:
        DecisionLog(cluster, first.driver.transactional_id).write_owner(
            begin_transaction(cluster, first.driver.transactional_id, 60_000), "another"
        )
    prepared = query.prepare(1)
    assert count_open(query) == 0
    query.commit(query.write(prepared, 1), 1)
    assert values_of(query.topics, query.target, at_least=2) == [b"0", b"1"]


def test_batch_is_committed_though_a_late_init_producer_id_has_fenced_its_driver(
    query: Query,
) -> None:
    with Cluster(query.topics.bootstrap) as cluster:
        for batch_id in (0, 1):
            prepared = query.prepare(batch_id)
            message = query.write(prepared, batch_id)
            begin_transaction(cluster, prepared._plan.driver.transactional_id, 60_000)
            query.commit(message, batch_id)
    assert values_of(query.topics, query.target, at_least=2) == [b"0", b"1"]


def test_prepare_looks_back_when_the_checkpoint_has_been_changed(query: Query) -> None:
    query.run(0)
    (query.checkpoint / "offsets/0").write_text(f'v1\n{{}}\n{{"{query.target}": {{"0": 7}}}}')
    with pytest.raises(ConfigError, match="it has been set back or changed"):
        query.prepare(1)


def test_batch_of_another_checkpoint_is_not_taken_for_one_that_is_decided(
    query: Query,
) -> None:
    query.run(0)
    assert query.write(query.prepare(0), 0).is_skipped
    (query.checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(ConfigError, match=r"from another checkpoint .* kafka.transactional.id"):
        query.write(query.prepare(0), 0)
    query.run(1)
    assert values_of(query.topics, query.target, at_least=2) == [b"0", b"1"]


def test_checkpoint_that_cannot_be_read_in_python_is_refused(query: Query) -> None:
    query.location = "dbfs:///nowhere"
    message = query.write(query.prepare(0), 0)
    with pytest.raises(ConfigError, match=r"offsets/0 .* cannot be read in Python"):
        query.commit(message, 0)
    query.writer().abort([message], 0)
    assert values_of(query.topics, query.target) == []


def test_commit_shows_progress_in_partitions_that_a_source_got_since(query: Query) -> None:
    source = query.topics.create(1)
    for batch_id, ends in enumerate([{"0": 7}, {"0": 7, "1": 3}]):
        prepared = query.prepare(batch_id, {source: ends})
        query.commit(query.write(prepared, batch_id), batch_id)
        query.topics.grow(source, 2 + batch_id)
    group = f"millstream-{query.target}"
    assert committed_offsets(query.topics, group, source, 2) == [7, 3]
