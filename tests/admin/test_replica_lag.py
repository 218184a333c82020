"""The lag of replicas, of brokers that follow and of brokers that do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.admin.cluster_state import cluster_state
from millstream.admin.replica_lag import Replica, ReplicaLag, log_ends, replica_lags
from millstream.client.cluster import Cluster as ClientCluster
from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run, until
from tests.peers.kafka_cluster import start_kafka_cluster
from tests.peers.patience import PATIENCE_SECONDS


def lags(bootstrap: str) -> list[ReplicaLag]:
    with ClientCluster(bootstrap) as client:
        return sorted(replica_lags(client, cluster_state(client)))


def bootstrap_of(cluster: Cluster) -> str:
    host, port = cluster.brokers[1].addresses[0]
    return f"{host}:{port}"


def test_follower_that_does_not_fetch_lags(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, replica_lag_time_max_ms=600_000) as cluster:
            await cluster.create_topic("t", 1, 2, 3)
            await cluster.create_topic("alone", 1)
            assert await cluster.produce(1, "t", b"a", b"b", timeout_ms=50_000) == (
                ErrorCode.NONE,
                0,
            )
            await cluster.brokers[3].replication.stop()
            await cluster.produce(1, "t", b"c", acks=1)
            await until(lambda: cluster.replica(2, "t").log.log_end_offset == 3)
            behind = 3 - cluster.replica(3, "t").log.log_end_offset
            assert await asyncio.to_thread(lags, bootstrap_of(cluster)) == [
                ReplicaLag(Replica(2, "t", 0), 0, is_in_sync=True),
                ReplicaLag(Replica(3, "t", 0), behind, is_in_sync=True),
            ]
            assert behind == 1

    run(main)


def test_lag_of_a_broker_that_is_gone_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.create_topic("u", 2, 1)
            await cluster.stop(2)
            assert await asyncio.to_thread(lags, bootstrap_of(cluster)) == [
                ReplicaLag(Replica(2, "t", 0), None, is_in_sync=False),
                ReplicaLag(Replica(2, "u", 0), None, is_in_sync=False),
            ]

    run(main)


@pytest.mark.slow
@pytest.mark.java
def test_replicas_of_apache_kafka_answer(tmp_path: Path) -> None:
    kafkas = start_kafka_cluster(tmp_path, 2)
    try:
        admin: Any = AdminClient({"bootstrap.servers": kafkas.bootstrap})
        created = admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])
        created["t"].result(PATIENCE_SECONDS)
        producer = Producer({"bootstrap.servers": kafkas.bootstrap})
        for _ in range(10):
            producer.produce("t", b"x")
        assert producer.flush(PATIENCE_SECONDS) == 0
        with ClientCluster(kafkas.bootstrap) as client:
            replicas = [Replica(1, "t", 0), Replica(2, "t", 0)]
            assert log_ends(client, replicas) == dict.fromkeys(replicas, 10)
        assert lags(kafkas.bootstrap) == [ReplicaLag(Replica(2, "t", 0), 0, is_in_sync=True)]
    finally:
        kafkas.stop()
