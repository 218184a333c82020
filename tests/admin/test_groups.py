"""Groups of real consumers, of both protocols: the list, members, offsets, deletion."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from millstream.admin.errors import OperationFailed
from millstream.admin.groups import (
    CLASSIC,
    CONSUMER,
    commit_offsets,
    committed_by_group,
    committed_offsets,
    decode_assignment,
    delete_group,
    describe_group,
    find_group,
    list_groups,
)
from millstream.admin.lag import group_lag, group_lags, timestamps_at
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from tests.peers.patience import wait_until

RECORDS = 6


@pytest.fixture
def topic(cluster: Cluster, bootstrap_servers: str, name: str) -> str:
    """Two partitions; the first has six records, of the times 1000, 2000, ..."""
    create_topics(cluster, [NewTopic(name, 2, {"retention.ms": "-1"})])
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(name, b"x", partition=0, timestamp=1000 * (number + 1))
    assert producer.flush(60) == 0
    return name


@contextmanager
def member(bootstrap_servers: str, topic: str, protocol: str) -> Iterator[str]:
    """A consumer that has its partitions and has committed offset 2 of the first; its group."""
    group = f"{protocol}-{topic}"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "client.id": "till",
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:

        def has_partitions() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        wait_until(has_partitions)
        consumer.commit(offsets=[Place(topic, 0, 2)], asynchronous=False)
        yield group
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
def test_group_is_described_while_it_reads_and_deleted_after(
    cluster: Cluster, bootstrap_servers: str, topic: str, protocol: str
) -> None:
    with member(bootstrap_servers, topic, protocol) as group:
        listed = find_group(cluster, group)
        assert (listed.type, listed.state, listed.protocol) == (protocol, "stable", "consumer")
        found = describe_group(cluster, group)
        assert (found.type, found.state) == (protocol, "stable")
        [reader] = found.members
        assert reader.client == "till"
        assert reader.partitions == ((topic, 0), (topic, 1))
        assert committed_offsets(cluster, group) == {(topic, 0): 2}
        with pytest.raises(OperationFailed, match="has members"):
            commit_offsets(cluster, group, {(topic, 0): 1})
        with pytest.raises(OperationFailed, match="has members"):
            delete_group(cluster, group)
        lags = group_lag(cluster, found, now_ms=10_000)
        assert [(it.partition, it.committed, it.lag, it.behind_ms) for it in lags] == [
            (0, 2, RECORDS - 2, 7_000),
            (1, None, None, None),
        ]
        assert lags[0].member.startswith("till @ ")
    commit_offsets(cluster, group, {(topic, 0): 5, (topic, 1): 0})
    assert committed_offsets(cluster, group) == {(topic, 0): 5, (topic, 1): 0}
    [row] = [it for it in group_lags(cluster, list_groups(cluster)) if it.group == group]
    assert (row.lag, row.lost, row.partitions, row.topics) == (1, 0, 2, (topic,))
    assert row.unread == ((topic, 0, 5),)
    delete_group(cluster, group)
    assert group not in [it.group for it in list_groups(cluster)]
    with pytest.raises(OperationFailed, match="there is no group"):
        describe_group(cluster, group)
    with pytest.raises(OperationFailed, match="there is no group"):
        delete_group(cluster, group)


def test_offsets_of_many_groups_are_one_answer(cluster: Cluster, topic: str) -> None:
    names = [f"many-{topic}-{number}" for number in range(20)]
    for number, group in enumerate(names):
        commit_offsets(cluster, group, {(topic, 0): number % RECORDS})
    listed = [it for it in list_groups(cluster) if it.group in names]
    found = committed_by_group(cluster, listed)
    assert found == {it: {(topic, 0): n % RECORDS} for n, it in enumerate(names)}


def test_unknown_group_suggests_a_similar_one(cluster: Cluster, topic: str) -> None:
    commit_offsets(cluster, f"billing-{topic}", {(topic, 0): 1})
    with pytest.raises(OperationFailed, match=f"did you mean 'billing-{topic}'"):
        find_group(cluster, f"biling-{topic}")


def test_timestamp_is_that_of_the_record_in_its_batch(cluster: Cluster, topic: str) -> None:
    assert timestamps_at(cluster, {(topic, 0): 4}) == {(topic, 0): 5000}
    assert timestamps_at(cluster, {(topic, 0): RECORDS, (topic, 1): 0, ("absent", 0): 0}) == {}


def test_assignment_is_decoded() -> None:
    content = struct.pack(">hi", 0, 1) + struct.pack(">h6si2i", 6, b"orders", 2, 3, 1) + b"\xff" * 4
    assert decode_assignment(content) == (("orders", 1), ("orders", 3))


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\0\0\0\1\0\2\xff\xfe"])
def test_assignment_of_another_kind_is_none(content: bytes) -> None:
    assert decode_assignment(content) == ()
