"""Several brokers: records reach all replicas, and nothing acknowledged is lost with a leader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from millstream.broker.replicas.partition import Partition
from millstream.coordination.replication.reassignment import Target
from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run, stored_bytes, until
from tests.broker.serving import WireClient
from tests.peers.patience import PATIENCE_SECONDS


def test_record_is_acknowledged_when_all_in_sync_replicas_have_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2, 3)
            assert await cluster.produce(1, "t", b"a", b"b") == (ErrorCode.NONE, 0)
            for node_id in (2, 3):
                log = cluster.replica(node_id, "t").log
                assert log.flushed_offset == 2
            assert cluster.values(1, "t") == [b"a", b"b"]
            await until(lambda: all(cluster.values(it, "t") == [b"a", b"b"] for it in (2, 3)))
            expected = stored_bytes(cluster.replica(1, "t"))
            assert stored_bytes(cluster.replica(2, "t")) == expected
            assert stored_bytes(cluster.replica(3, "t")) == expected

    run(main)


def test_follower_takes_over_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2, 3, min_insync_replicas="2")
            for number in range(20):
                assert await cluster.produce(1, "t", b"%d" % number) == (ErrorCode.NONE, number)
            await cluster.cut_off(1)
            leader = cluster.leader("t")
            assert leader in (2, 3)
            assert await cluster.produce(leader, "t", b"next") == (ErrorCode.NONE, 20)
            assert cluster.values(leader, "t") == [b"%d" % it for it in range(20)] + [b"next"]

    run(main)


def test_former_leader_acknowledges_nothing_and_drops_what_it_alone_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2, 3)
            await cluster.produce(1, "t", b"a")
            await cluster.cut_off(1)
            error, _ = await cluster.produce(1, "t", b"late", acks=1)
            assert error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            # As if it had been written just before: nobody else has it.
            cluster.homes[1].is_live = True
            error, _ = await cluster.produce(1, "t", b"lost", timeout_ms=100)
            assert error is ErrorCode.REQUEST_TIMED_OUT
            assert cluster.replica(1, "t").log.log_end_offset == 2
            cluster.homes[1].is_live = False
            leader = cluster.leader("t")
            assert await cluster.produce(leader, "t", b"b") == (ErrorCode.NONE, 1)
            await cluster.stop(1)
            await cluster.start(1)
            await until(lambda: cluster.partition_image("t").isr.count(1) == 1)
            await until(lambda: cluster.values(1, "t") == [b"a", b"b"])
            assert stored_bytes(cluster.replica(1, "t")) == stored_bytes(
                cluster.replica(leader, "t")
            )

    run(main)


def test_deposed_leader_answers_waiting_producers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.brokers[2].replication.stop()  # fetches nothing any more
            waiting = asyncio.create_task(cluster.produce(1, "t", b"a", timeout_ms=30_000))
            await until(lambda: cluster.replica(1, "t").leadership.waiting_count == 1)
            await cluster.brokers[1].actions.shut_down()
            error, _ = await waiting
            assert error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert cluster.leader("t") == 2

    run(main)


def test_produce_times_out_if_a_follower_does_not_fetch(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.brokers[2].replication.stop()
            for _ in range(2):  # decoded in full, and by its template
                error, _ = await cluster.produce(1, "t", b"a", timeout_ms=50)
                assert error is ErrorCode.REQUEST_TIMED_OUT
            assert cluster.replica(1, "t").high_watermark == 0

    run(main)


def test_high_watermark_survives_a_restart_of_all_replicas(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            await cluster.stop(2)
            await cluster.stop(1)
            for node_id in (1, 2):
                await cluster.start(node_id)
            await until(lambda: cluster.leader("t") > 0)
            leader = cluster.leader("t")
            await until(lambda: cluster.values(leader, "t") == [b"a"])
            await until(lambda: len(cluster.partition_image("t").isr) == 2)
            assert await cluster.produce(leader, "t", b"b") == (ErrorCode.NONE, 1)

    run(main)


def test_topic_recreated_while_a_follower_is_down_has_nothing_of_the_old_one(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"old", b"older")
            await cluster.stop(2)
            broker = cluster.brokers[1]
            await broker.actions.delete_topics([cluster.image.topics["t"].id])
            await cluster.start(2)
            await cluster.create_topic("t", 1, 2)
            assert await cluster.produce(1, "t", b"new") == (ErrorCode.NONE, 0)
            await until(lambda: cluster.values(2, "t") == [b"new"])

    run(main)


def test_replica_of_a_broker_that_was_removed_is_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            outcome = await cluster.brokers[1].actions.reassign_partitions([Target("t", 0, (1, 3))])
            assert outcome == {("t", 0): None}
            await cluster.reconcile()

            async def reconcile_until_moved() -> None:
                while cluster.partition_image("t").replicas != (1, 3):
                    await asyncio.sleep(0.02)
                    await cluster.reconcile()

            await asyncio.wait_for(reconcile_until_moved(), PATIENCE_SECONDS)
            await until(lambda: cluster.values(3, "t") == [b"a"])
            await until(lambda: ("t", 0) not in cluster.brokers[2].directories.logs)

    run(main)


def test_consumer_is_sent_to_the_replica_in_its_rack_and_reads_there(tmp_path: Path) -> None:
    async def fetch(cluster: Cluster, node_id: int, rack: str, version: int = 16) -> Any:
        position = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 10_000,
        }
        async with WireClient.connected(cluster.brokers[node_id]) as client:
            answer = await client.call(
                1,
                version,
                max_wait=20_000,
                min_bytes=1,
                max_bytes=100_000,
                isolation_level=0,
                session_id=0,
                session_epoch=0,
                topics=[{"topic_id": cluster.image.topics["t"].id, "partitions": [position]}],
                forgotten_topics_data=[],
                rack_id=rack,
            )
        return answer.responses[0].partitions[0]

    async def main() -> None:
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        async with Cluster.of(tmp_path, 0, replica_selector_class=selector) as cluster:
            for node_id in (1, 2):
                await cluster.start(node_id, broker_rack=f"rack{node_id}")
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            await until(lambda: cluster.replica(2, "t").high_watermark == 1)
            there = await fetch(cluster, 1, "rack2")
            assert (there.preferred_read_replica, there.records) == (2, b"")
            for rack in ("rack1", "elsewhere", ""):
                here = await fetch(cluster, 1, rack)
                assert here.preferred_read_replica == -1
                assert here.records
            near = await fetch(cluster, 2, "rack2")
            assert near.records == here.records

    run(main)


def test_consumer_waits_at_a_follower_for_the_next_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            follower = cluster.replica(2, "t")
            seen: list[int] = []

            class Watcher:
                def partition_changed(self, partition: Partition) -> None:
                    seen.append(partition.high_watermark)

            watcher = Watcher()
            follower.watch(watcher)
            await cluster.produce(1, "t", b"a")
            await until(lambda: seen[-1:] == [1])
            assert follower.read(0, max_bytes=1000)
            follower.unwatch(watcher)

    run(main)
