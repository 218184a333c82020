"""An archive whose leader is frozen, replaced and comes back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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
    wait_until,
)
from tests.peers.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


def leader_of(admin: AdminClient) -> int:
    return int(admin.list_topics("orders", timeout=30).topics["orders"].partitions[0].leader)


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
