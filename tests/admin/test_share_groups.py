"""Share groups with a real member: what it holds, how often it was delivered, resets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from millstream.admin.errors import OperationFailed
from millstream.admin.groups import SHARE, delete_group, list_groups
from millstream.admin.lag import group_lags
from millstream.admin.settings import Resource, alter_settings
from millstream.admin.share_groups import (
    Delivery,
    ShareBatch,
    SharePartition,
    alter_start_offsets,
    coordinator_key,
    describe_share_group,
    share_partitions,
    start_offsets,
    total,
)
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from tests.peers.patience import wait_until

RECORDS = 10


@pytest.fixture
def queue(cluster: Cluster, bootstrap_servers: str, name: str) -> str:
    """A share group that begins with the first of ten records of a topic of the same name."""
    create_topics(cluster, [NewTopic(name, 1)])
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(name, f"v{number}".encode())
    assert producer.flush(60) == 0
    alter_settings(cluster, Resource.GROUP, name, {"share.auto.offset.reset": "earliest"})
    return name


class Till:
    """A member that has taken all records, and what it has taken."""

    def __init__(self, bootstrap_servers: str, queue: str) -> None:
        self.consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": queue,
                "client.id": "till",
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        self.consumer.subscribe([queue])
        self.records: list[Any] = []
        wait_until(self._has_taken_all)

    def _has_taken_all(self) -> bool:
        self.records += self.consumer.poll(1.0)
        return len(self.records) >= RECORDS

    def acknowledge(self, offsets: range, kind: AcknowledgeType) -> None:
        for record in self.records:
            if record.offset() in offsets:
                self.consumer.acknowledge(record, kind)
        self.consumer.commit_sync()


@pytest.fixture
def till(bootstrap_servers: str, queue: str) -> Iterator[Till]:
    member = Till(bootstrap_servers, queue)
    yield member
    member.consumer.close()


def test_records_in_flight_are_shown_with_who_holds_them(
    cluster: Cluster, queue: str, till: Till, request: pytest.FixtureRequest
) -> None:
    till.acknowledge(range(4), AcknowledgeType.ACCEPT)
    till.acknowledge(range(4, 6), AcknowledgeType.RELEASE)
    found = describe_share_group(cluster, queue)
    assert (found.state, [it.client for it in found.members]) == ("stable", ["till"])
    assert found.members[0].partitions == ((queue, 0),)

    def is_acknowledged() -> bool:
        [partition] = share_partitions(cluster, queue)
        return partition.start == 4

    wait_until(is_acknowledged)
    [partition] = share_partitions(cluster, queue)
    assert (partition.backlog, partition.end) == (6, RECORDS)
    [row] = [it for it in group_lags(cluster, list_groups(cluster)) if it.group == queue]
    assert (row.type, row.lag, row.topics) == (SHARE, 6, (queue,))
    if "apache-kafka" in request.node.name:
        assert partition.held is None  # it tells only what is persisted
        return
    assert partition.is_live
    assert partition.holders == {found.members[0].member: partition.held}
    assert (partition.held or 0) + (partition.released or 0) == 6
    assert all(it.remaining_ms is not None for it in partition.batches if it.member)
    with pytest.raises(OperationFailed, match="has members"):
        alter_start_offsets(cluster, queue, {(queue, 0): 0})


def test_group_without_members_is_moved_and_deleted(
    cluster: Cluster, bootstrap_servers: str, queue: str
) -> None:
    till = Till(bootstrap_servers, queue)
    till.acknowledge(range(7), AcknowledgeType.ACCEPT)
    till.consumer.close()
    wait_until(lambda: not describe_share_group(cluster, queue).members)
    alter_start_offsets(cluster, queue, {(queue, 0): 2})
    assert start_offsets(cluster, queue) == {(queue, 0): 2}
    [partition] = share_partitions(cluster, queue)
    assert (partition.start, partition.backlog, partition.holders) == (2, RECORDS - 2, {})
    delete_group(cluster, queue)
    with pytest.raises(OperationFailed, match="there is no group"):
        describe_share_group(cluster, queue)


def test_partition_counts_records_by_state_and_delivery() -> None:
    partition = SharePartition("t", 0, 0, 20, 18)
    partition.add(
        [
            ShareBatch(0, 1, Delivery.ACKNOWLEDGED, 1),
            ShareBatch(2, 4, Delivery.ACQUIRED, 2, "m", 900),
            ShareBatch(5, 5, Delivery.ACQUIRED, 1, "n", 900),
            ShareBatch(6, 9, Delivery.DELAYED, 2, None, 100),
            ShareBatch(10, 10, Delivery.ARCHIVING, 5),
        ],
        is_live=True,
    )
    row = partition.as_row()
    assert (row["held"], row["delayed"], row["released"], row["dying"]) == (4, 4, 0, 1)
    assert row["deliveries"] == {"1": 1, "2": 7, "5": 1}
    assert row["holders"] == {"m": 3, "n": 1}
    assert [len(it) for it in partition.batches] == [3, 1, 4, 1]
    assert (total([1, None, 2]), total([None])) == (3, None)


def test_coordinator_key_is_kafkas() -> None:
    assert coordinator_key("g", uuid.UUID(int=0), 3) == "g:AAAAAAAAAAAAAAAAAAAAAA:3"
