"""An archive whose leader is frozen, replaced and comes back, and one that workers share."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.archive.reading import open_archive
from millstream.archive.verifying import verify_partition
from millstream.testing.cluster import ClusterProcesses
from tests.broker.archiving.scenes import (
    SEGMENT_BYTES,
    archived_end,
    check_records,
    consume,
    produce,
    settings,
)
from tests.broker.workers.test_supervisor import workers_of
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import start_workers

pytestmark = pytest.mark.slow


def leader_of(admin: AdminClient) -> int:
    """-1 if there is none, or if the client asks the broker that is frozen."""
    try:
        found = admin.list_topics("orders", timeout=3).topics["orders"]
    except KafkaException:
        return -1
    return int(found.partitions[0].leader)


def test_later_leader_continues_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with ClusterProcesses(tmp_path, settings=settings(str(archive))) as cluster:
        clients: Any = SimpleNamespace(bootstrap_servers=cluster.addresses)
        admin = AdminClient({"bootstrap.servers": cluster.addresses})
        config = {
            "remote.storage.enable": "true",
            "internal.segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": str(SEGMENT_BYTES),
            "retention.ms": "-1",
        }
        new = NewTopic("orders", num_partitions=1, replication_factor=3, config=config)
        admin.create_topics([new])["orders"].result(PATIENCE_SECONDS)
        produce(clients, 0, 200)
        wait_until(lambda: archived_end(archive) > 120)
        for stop, start in (("pause", "resume"), ("kill", "start")):
            wait_until(lambda: leader_of(admin) != -1)
            leader, end = leader_of(admin), len(consume(clients, 10**6))
            getattr(cluster.brokers[leader], stop)()
            wait_until(lambda before=leader: leader_of(admin) not in (-1, before))
            produce(clients, end, end + 200)
            wait_until(lambda wanted=end + 120: archived_end(archive) > wanted)
            getattr(cluster.brokers[leader], start)()
            check_records(consume(clients, end + 200), 0, end + 200)
        produce(clients, 600, 700)
        wait_until(lambda: archived_end(archive) > 620)
        check_records(consume(clients, 700), 0, 700)
    part = open_archive(str(archive)).topic("orders").partitions[0]
    assert verify_partition(part).problems == []
    offsets = [it for rows in part.read() for it in rows.column("offset").to_pylist()]
    assert offsets == list(range(part.end_offset))


def test_each_partition_is_archived_by_its_worker(tmp_path: Path) -> None:
    """Workers that are killed come back and continue; the archive of a deleted topic goes."""
    archive, partitions = tmp_path / "archive", range(4)
    given = {name: str(value) for name, value in settings(str(archive)).items()}
    server = start_workers(tmp_path / "data", 2, given)
    try:
        clients: Any = SimpleNamespace(bootstrap_servers=server.bootstrap)
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {
            "remote.storage.enable": "true",
            "internal.segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": str(SEGMENT_BYTES),
            "retention.ms": "-1",
        }
        placed = [[index % 2 + 1] for index in partitions]
        new = NewTopic("orders", num_partitions=4, replica_assignment=placed, config=config)
        admin.create_topics([new])["orders"].result(PATIENCE_SECONDS)
        for killed, end in ((1, 200), (2, 400)):
            fill(clients, end - 200, end)
            wait_until(lambda end=end: min(ends(archive)) > end - 100)
            workers_of(server)[killed].kill()
            read(clients, end)
        for part in open_archive(str(archive)).topic("orders").partitions.values():
            assert verify_partition(part).problems == []
            offsets = [it for rows in part.read() for it in rows.column("offset").to_pylist()]
            assert offsets == list(range(part.end_offset))
        admin.delete_topics(["orders"])["orders"].result(PATIENCE_SECONDS)
        wait_until(lambda: not [it for it in (archive / "orders").rglob("*") if it.is_file()])
    finally:
        server.stop()


def ends(archive: Path) -> list[int]:
    found = open_archive(str(archive)).topics().get("orders")
    parts = found[-1].partitions if found else {}
    return [parts[it].end_offset if it in parts else 0 for it in range(4)]


def fill(clients: Any, first: int, end: int) -> None:
    """Records with these offsets in each of four partitions."""
    options = {"bootstrap.servers": clients.bootstrap_servers, "acks": "all", "linger.ms": 0}
    producer = Producer({**options, "batch.num.messages": 10})
    for number in range(first, end):
        for partition in range(4):
            producer.produce("orders", value=b"%d" % number + b"." * 60, partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


def read(clients: Any, end: int) -> None:
    """Each partition has each record once, in order."""
    options = {"bootstrap.servers": clients.bootstrap_servers, "group.id": "reader"}
    consumer = Consumer({**options, "auto.offset.reset": "error"})
    found: dict[int, list[int]] = {it: [] for it in range(4)}
    try:
        consumer.assign([TopicPartition("orders", it, 0) for it in range(4)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(len(it) < end for it in found.values()) and time.monotonic() < deadline:
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    assert int(message.value().rstrip(b".")) == message.offset()
                    found[message.partition()].append(message.offset())
    finally:
        consumer.close()
    assert found == {it: list(range(end)) for it in range(4)}
