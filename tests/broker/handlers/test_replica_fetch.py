"""Fetch of followers and of tools that compare replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run, until
from tests.broker.serving import WireClient

FETCH, LIST_OFFSETS = 1, 2


async def fetch(
    cluster: Cluster, node_id: int, offset: int, *, replica_id: int, **wanted: Any
) -> Any:
    """The answer for partition 0 of topic t."""
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": 0,
        "partition_max_bytes": 10_000,
    } | wanted
    broker = cluster.image.brokers.get(replica_id)
    async with WireClient.connected(cluster.brokers[node_id]) as client:
        answer = await client.call(
            FETCH,
            17,
            replica_state={
                "replica_id": replica_id,
                "replica_epoch": -1 if broker is None else broker.epoch,
            },
            max_wait=0,
            min_bytes=1,
            max_bytes=100_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic_id": cluster.image.topics["t"].id, "partitions": [partition]}],
            forgotten_topics_data=[],
            rack_id="",
        )
    return answer.responses[0].partitions[0]


def test_replicas_read_to_the_end_and_consumers_to_the_high_watermark(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            await cluster.brokers[2].replication.stop()
            await cluster.produce(1, "t", b"b", acks=1)
            consumer = await fetch(cluster, 1, 1, replica_id=-1)
            assert (consumer.high_watermark, consumer.records) == (1, b"")
            tool = await fetch(cluster, 1, 1, replica_id=-2)
            assert b"b" in tool.records
            assert cluster.replica(1, "t").high_watermark == 1
            follower = await fetch(cluster, 1, 1, replica_id=2)
            assert follower.records == tool.records
            await fetch(cluster, 1, 2, replica_id=2)
            assert cluster.replica(1, "t").high_watermark == 2
            assert (await fetch(cluster, 2, 0, replica_id=-2)).records, "also of followers"

    run(main)


def test_follower_is_refused_where_its_request_is_wrong(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 3) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")

            async def error(node_id: int, offset: int, replica_id: int, **wanted: Any) -> Any:
                answer = await fetch(cluster, node_id, offset, replica_id=replica_id, **wanted)
                return answer.error_code

            assert await error(2, 0, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await error(1, 0, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await error(1, 9, 2) == ErrorCode.OFFSET_OUT_OF_RANGE
            stale, unknown = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
            assert await error(1, 0, 2, current_leader_epoch=5) == unknown
            await cluster.cut_off(3)
            await cluster.brokers[1].actions.shut_down()
            await until(lambda: cluster.leader("t") == 2)
            assert await error(2, 0, 1, current_leader_epoch=0) == stale
            cluster.homes[2].is_live = False
            assert await error(2, 0, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main)


def test_follower_whose_log_diverges_gets_the_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            await cluster.brokers[1].actions.shut_down()
            await until(lambda: cluster.leader("t") == 2)
            await cluster.produce(2, "t", b"b", acks=1)
            answer = await fetch(cluster, 2, 2, replica_id=1, last_fetched_epoch=0)
            assert answer.error_code == ErrorCode.NONE
            assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
            assert not answer.records

    run(main)


def test_new_leader_does_not_answer_an_end_below_what_consumers_saw(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.brokers[2].replication.stop()
            await cluster.produce(1, "t", b"a", acks=1)
            leadership = cluster.replica(1, "t").leadership
            leadership.epoch_start_offset = 1  # as if broker 1 had just been elected
            assert await _latest(cluster, version=7) == ErrorCode.OFFSET_NOT_AVAILABLE
            assert await _latest(cluster, version=4) == ErrorCode.LEADER_NOT_AVAILABLE
            await fetch(cluster, 1, 1, replica_id=2)
            assert await _latest(cluster, version=7) == ErrorCode.NONE

    run(main)


async def _latest(cluster: Cluster, version: int) -> Any:
    """The error of a consumer that asks for the end."""
    wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": "t", "partitions": [wanted]}]
    async with WireClient.connected(cluster.brokers[1]) as client:
        answer = await client.call(
            LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics
        )
    return answer.topics[0].partitions[0].error_code
