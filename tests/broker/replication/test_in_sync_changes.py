"""Followers leave and join in-sync sets, and producers hear of it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from millstream.errors import ApiError, ErrorCode
from tests.broker.replication.cluster import Cluster, run, until


def test_follower_that_does_not_fetch_leaves_and_joins_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, replica_lag_time_max_ms=1500) as cluster:
            await cluster.create_topic("t", 1, 2, 3)
            await cluster.produce(1, "t", b"a")
            await cluster.stop(3)
            await cluster.reconcile()
            assert 3 not in cluster.partition_image("t").isr
            await cluster.brokers[2].replication.stop()  # its session goes on
            waiting = asyncio.create_task(cluster.produce(1, "t", b"b", timeout_ms=30_000))
            await until(lambda: cluster.partition_image("t").isr == (1,))
            assert await waiting == (ErrorCode.NONE, 1)
            await cluster.stop(2)
            await cluster.start(2)
            await cluster.start(3)
            await until(lambda: set(cluster.partition_image("t").isr) == {1, 2, 3})
            assert cluster.partition_image("t").leader_epoch == 0
            assert await cluster.produce(1, "t", b"c") == (ErrorCode.NONE, 2)
            await until(lambda: cluster.values(3, "t") == [b"a", b"b", b"c"])

    run(main)


def test_too_few_replicas_refuse_acks_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2, min_insync_replicas="2")
            await cluster.produce(1, "t", b"a")
            await cluster.brokers[2].replication.stop()
            waiting = asyncio.create_task(cluster.produce(1, "t", b"b", timeout_ms=30_000))
            await until(lambda: cluster.replica(1, "t").log.log_end_offset == 2)
            await cluster.cut_off(2)
            assert (await waiting)[0] is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            error, _ = await cluster.produce(1, "t", b"c")
            assert error is ErrorCode.NOT_ENOUGH_REPLICAS
            assert cluster.replica(1, "t").high_watermark == 1
            assert await cluster.produce(1, "t", b"d", acks=1) == (ErrorCode.NONE, 2)
            assert cluster.replica(1, "t").high_watermark == 1

    run(main)


def test_refused_and_unknown_proposals_are_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2, replica_lag_time_max_ms=2000) as cluster:
            await cluster.create_topic("t", 1, 2)
            actions = cluster.brokers[1].actions
            alter_partitions = actions.alter_partitions
            failures = [
                ApiError(ErrorCode.NETWORK_EXCEPTION, "nobody knows whether it was decided"),
                ApiError(ErrorCode.INVALID_UPDATE_VERSION, "refused"),
            ]

            async def fail_first(proposals):  # type: ignore[no-untyped-def]
                if not failures:
                    return await alter_partitions(proposals)
                error = failures.pop(0)
                if error.code is ErrorCode.NETWORK_EXCEPTION:
                    await alter_partitions(proposals)
                    raise error
                return [error for _ in proposals]

            await cluster.stop(2)
            assert cluster.partition_image("t").isr == (1,)
            actions.alter_partitions = fail_first  # type: ignore[method-assign]
            await cluster.start(2)
            await until(lambda: set(cluster.partition_image("t").isr) == {1, 2})
            await cluster.stop(2)
            await cluster.start(2)
            await until(lambda: set(cluster.partition_image("t").isr) == {1, 2})
            assert not failures
            assert await cluster.produce(1, "t", b"a") == (ErrorCode.NONE, 0)

    run(main)


def test_others_lead_while_a_disk_is_full(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2, 3, min_insync_replicas="2")
            await cluster.produce(1, "t", b"a")
            directory = cluster.replica(1, "t").log.directory
            for _ in range(3):  # as each refused append does
                directory.note_full(OSError(errno.ENOSPC, "no space left"))
            await until(lambda: cluster.leader("t") != 1)
            leader = cluster.leader("t")
            assert await cluster.produce(leader, "t", b"b") == (ErrorCode.NONE, 1)
            # It follows, and is in sync as soon as it can write again.
            await until(lambda: set(cluster.partition_image("t").isr) == {1, 2, 3})
            await until(lambda: cluster.values(1, "t") == [b"a", b"b"])

    run(main)


def test_others_lead_the_partitions_of_a_failed_directory(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("led", 1, 2, 3)
            await cluster.create_topic("followed", 2, 1, 3)
            await cluster.create_topic("lone", 1)
            for topic, leader in (("led", 1), ("followed", 2), ("lone", 1)):
                await cluster.produce(leader, topic, b"a")
            server, log = cluster.brokers[1], cluster.replica(1, "led").log
            stops: list[int] = []
            server.stop_soon = lambda: stops.append(1)
            log.directory.fail(OSError(errno.EIO, "broken"))
            server.directory_failed([log])
            await until(lambda: set(cluster.partition_image("led").isr) == {2, 3})
            await until(lambda: set(cluster.partition_image("followed").isr) == {2, 3})
            leader = cluster.leader("led")
            assert leader != 1
            assert await cluster.produce(leader, "led", b"b") == (ErrorCode.NONE, 1)
            assert cluster.leader("lone") == 1, "nobody else has its records"
            assert stops, "it has no directory left"

    run(main)
