"""Transactions that one process writes and another ends, on Millstream and on Apache Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from millstream.client.cluster import Cluster, CoordinatorKind, check
from millstream.client.producing import RawProducer
from millstream.client.transactions import (
    Transaction,
    add_at_once,
    begin_transaction,
    commit_offsets,
    end_transaction,
    open_transactions,
)
from millstream.errors import ApiError, ErrorCode
from millstream.records.record import Record, encode_batch
from tests.peers.impatient import start_impatient
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server


@pytest.fixture(
    scope="module",
    params=["millstream", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    running = start_impatient(request.param, tmp_path_factory.mktemp("transactions"))
    yield running
    running.stop()


@pytest.fixture
def writer(server: Server) -> Iterator[Cluster]:
    with Cluster(server.bootstrap, client_id="writer") as cluster:
        yield cluster


@pytest.fixture
def ender(server: Server) -> Iterator[Cluster]:
    with Cluster(server.bootstrap, client_id="ender") as cluster:
        yield cluster


def create_topic(cluster: Cluster, partitions: int = 1) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    answer = cluster.any_connection().call("create_topics", {"topics": [topic], "timeout": 5000})
    check(answer.topics[0].error_code, name)
    return name


def write(cluster: Cluster, transactional_id: str, topic: str, values: list[bytes]) -> Transaction:
    """Write the values in a transaction, and leave it open."""
    producer = RawProducer(cluster)
    producer.begin(transactional_id, 60_000)
    identity = producer.identity(topic, 0)
    now_ms = int(time.time() * 1000)  # retention deletes what is older than it allows
    records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
    batch = encode_batch(
        records,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
        is_transactional=True,
    )
    producer.send(topic, 0, batch, len(values))
    producer.flush()
    assert producer.transaction is not None
    return producer.transaction


def committed(bootstrap: str, topic: str) -> list[bytes | None]:
    """All that a read-committed reader sees now."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "any", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while True:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        if message.error():
            consumer.close()
            return values
        values.append(message.value())


def test_end_transaction_commits_what_another_process_wrote_however_often(
    server: Server, writer: Cluster, ender: Cluster
) -> None:
    topic = create_topic(ender)
    transaction = write(writer, f"id-{topic}", topic, [b"a", b"b"])
    assert committed(server.bootstrap, topic) == []
    writer.close()
    end_transaction(ender, *transaction, commit=True)
    end_transaction(ender, *transaction, commit=True)
    write(writer, f"id-{topic}", topic, [b"c"])  # the end is through before the next begins
    assert committed(server.bootstrap, topic) == [b"a", b"b"]


def test_end_transaction_is_fenced_when_the_id_began_anew(writer: Cluster, ender: Cluster) -> None:
    topic = create_topic(ender)
    transaction = write(writer, f"id-{topic}", topic, [b"a"])
    begin_transaction(ender, transaction.transactional_id, 60_000)
    with pytest.raises(ApiError) as caught:
        end_transaction(ender, *transaction, commit=True)
    assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def test_begin_after_a_transaction_is_fenced_when_another_began_since(
    writer: Cluster, ender: Cluster
) -> None:
    first = begin_transaction(writer, f"id-{uuid.uuid4().hex}", 60_000)
    second = begin_transaction(writer, first.transactional_id, 60_000, after=first)
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    begin_transaction(ender, first.transactional_id, 60_000)
    with pytest.raises(ApiError) as caught:
        begin_transaction(writer, first.transactional_id, 60_000, after=second)
    assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def test_open_transactions_lists_those_of_a_prefix(writer: Cluster, ender: Cluster) -> None:
    topic = create_topic(ender)
    wanted = write(writer, f"id.{topic}-7-0", topic, [b"a"])
    write(writer, f"idx{topic}-7-0", topic, [b"a"])
    found = open_transactions(ender, f"id.{topic}-")
    assert [(it.transactional_id, it.producer_id) for it in found] == [wanted[:2]]
    end_transaction(ender, *wanted, commit=False)
    assert open_transactions(ender, f"id.{topic}-") == []


def test_commit_offsets_is_part_of_the_transaction(writer: Cluster, ender: Cluster) -> None:
    topic = create_topic(ender)
    group = f"group-{topic}"
    transaction = begin_transaction(writer, f"id-{topic}", 60_000)
    add_at_once(writer, transaction, [(topic, 0)], group)
    commit_offsets(writer, transaction, group, {(topic, 0): 7})
    end_transaction(writer, *transaction, commit=True)
    begin_transaction(writer, f"id-{topic}", 60_000)  # answered when the markers are written
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    answer = ender.ask_coordinator(
        CoordinatorKind.GROUP, group, "offset_fetch", {"groups": [asked]}, version=8
    )
    assert answer.groups[0].topics[0].partitions[0].committed_offset == 7
