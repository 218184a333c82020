"""A cluster of child processes: settings for its size, and a life of three brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream.errors import MillstreamError
from millstream.testing.cluster import ClusterProcesses, replicated
from tests.peers.patience import wait_until


@pytest.mark.parametrize(("count", "in_sync"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_one_broker_can_be_lost(count: int, in_sync: int) -> None:
    settings = replicated(count)
    assert settings["default.replication.factor"] == count
    assert settings["min.insync.replicas"] == in_sync


@pytest.mark.slow
@pytest.mark.java
def test_brokers_are_a_cluster(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path) as cluster:
        wait_until(lambda: members(cluster.brokers[1].address) == [1, 2, 3])
        cluster.brokers[2].kill()
        wait_until(lambda: members(cluster.brokers[1].address) == [1, 3])


def members(address: str) -> list[int]:
    """As one broker knows them; none while it does not answer."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        return sorted(admin.list_topics(timeout=10).brokers)
    except KafkaException:
        return []


@pytest.mark.java
def test_cluster_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, 1, {"num.partitions": "many"})
    with pytest.raises(MillstreamError, match=r"num\.partitions"), cluster:
        pass
    assert not cluster.zookeeper.is_running
