"""Throttles between brokers. A rate of 0 transfers nothing, so nothing here depends on time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.broker.metadata.configs import Change, Operation
from millstream.coordination.cluster import Resource, ResourceType
from millstream.coordination.replication.reassignment import Target
from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run, until


async def configure(cluster: Cluster, type: ResourceType, name: str, **settings: Any) -> None:
    """Set settings; None unsets."""
    changes = [
        Change(key.replace("_", "."), Operation.DELETE if it is None else Operation.SET, it)
        for key, it in settings.items()
    ]
    resource = Resource(type, name)
    outcome = await cluster.brokers[1].actions.alter_configs(
        {resource: changes}, validate_only=False
    )
    assert outcome == {resource: None}


async def add_replica(cluster: Cluster, topic: str, *replicas: int) -> None:
    outcome = await cluster.brokers[1].actions.reassign_partitions([Target(topic, 0, replicas)])
    assert outcome == {(topic, 0): None}


async def produce(cluster: Cluster, topic: str) -> tuple[ErrorCode, int]:
    return await cluster.produce(1, topic, b"x", timeout_ms=50_000)


def end(cluster: Cluster, node_id: int, topic: str) -> int:
    partition = cluster.brokers[node_id].partitions.get(topic, 0)
    return -1 if partition is None else partition.log.log_end_offset


def test_leader_throttles_only_followers_that_are_not_in_sync(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, replica_lag_time_max_ms=600_000) as cluster:
            for topic in ("t", "free"):
                await cluster.create_topic(topic, 1, 2)
                await produce(cluster, topic)
            await configure(
                cluster, ResourceType.TOPIC, "t", leader_replication_throttled_replicas="0:1,0:2"
            )
            await configure(
                cluster, ResourceType.BROKER, "1", leader_replication_throttled_rate="0"
            )
            await add_replica(cluster, "t", 1, 2, 3)
            await add_replica(cluster, "free", 1, 2, 3)
            await until(lambda: 3 in cluster.partition_image("free").isr)
            # Every record of the other topic needs a fetch of broker 3, which also asks for t.
            for number in range(1, 5):
                assert await produce(cluster, "free") == (ErrorCode.NONE, number)
                assert await produce(cluster, "t") == (ErrorCode.NONE, number)
            assert (end(cluster, 2, "t"), end(cluster, 3, "t")) == (5, 0)
            assert cluster.partition_image("t").isr == (1, 2)
            await configure(
                cluster, ResourceType.BROKER, "1", leader_replication_throttled_rate=None
            )
            await until(lambda: 3 in cluster.partition_image("t").isr)
            assert end(cluster, 3, "t") == 5

    run(main)


def test_follower_that_is_behind_does_not_fetch_beyond_its_rate(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"replica_lag_time_max_ms": 600_000, "replica_fetch_max_bytes": 10}
        async with Cluster.of(tmp_path, 2, **settings) as cluster:
            await cluster.create_topic("t", 1)
            await cluster.create_topic("free", 1, 2)
            for number in range(5):
                assert await produce(cluster, "t") == (ErrorCode.NONE, number)
            await configure(
                cluster, ResourceType.TOPIC, "t", follower_replication_throttled_replicas="*"
            )
            await configure(
                cluster, ResourceType.BROKER, "2", follower_replication_throttled_rate="0"
            )
            await add_replica(cluster, "t", 1, 2)
            # The first fetch finds out that it is behind, and brings one batch.
            await until(lambda: end(cluster, 2, "t") == 1)
            for number in range(4):
                assert await produce(cluster, "free") == (ErrorCode.NONE, number)
            assert end(cluster, 2, "t") == 1
            await configure(
                cluster, ResourceType.BROKER, "2", follower_replication_throttled_rate=None
            )
            await until(lambda: cluster.partition_image("t").isr == (1, 2))
            assert end(cluster, 2, "t") == 5

    run(main)


def test_throttled_replica_catches_up_at_its_rate(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2, replica_fetch_max_bytes=10) as cluster:
            await cluster.create_topic("t", 1)
            for number in range(4):
                assert await produce(cluster, "t") == (ErrorCode.NONE, number)
            await configure(
                cluster,
                ResourceType.TOPIC,
                "t",
                leader_replication_throttled_replicas="0:1",
                follower_replication_throttled_replicas="0:2",
            )
            for node_id in "12":
                await configure(
                    cluster,
                    ResourceType.BROKER,
                    node_id,
                    leader_replication_throttled_rate="1000",
                    follower_replication_throttled_rate="1000",
                )
            await add_replica(cluster, "t", 1, 2)
            await until(lambda: cluster.partition_image("t").isr == (1, 2))
            assert end(cluster, 2, "t") == 4
            for node_id, side in ((1, "leader"), (2, "follower")):
                throttle = getattr(cluster.brokers[node_id].replication.throttles, side)
                assert throttle.is_on
                assert throttle.applies_to("t", 0)

    run(main)
