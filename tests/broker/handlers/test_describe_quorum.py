"""DescribeQuorum in a cluster; `tests/conformance/test_admin.py` compares one broker with Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run
from tests.broker.serving import WireClient

KEY = 55
METADATA = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}


async def describe(cluster: Cluster, node_id: int, version: int = 2) -> tuple[Any, Any]:
    async with WireClient.connected(cluster.brokers[node_id]) as client:
        answer = await client.call(KEY, version, topics=[METADATA])
    return answer, answer.topics[0].partitions[0]


def test_live_brokers_vote_and_fenced_ones_observe(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            cluster.homes[1].controller_id = 2
            cluster.homes[1].controller_epoch = 5
            _, partition = await describe(cluster, 1)
            end = cluster.image.version + 1
            assert (partition.leader_id, partition.leader_epoch) == (2, 5)
            assert partition.high_watermark == end
            ends = [(it.replica_id, it.log_end_offset) for it in partition.current_voters]
            assert (ends, partition.observers) == ([(1, end), (2, end), (3, end)], ())
            await cluster.stop(3)
            answer, partition = await describe(cluster, 1)
            assert [it.replica_id for it in partition.current_voters] == [1, 2]
            (observer,) = partition.observers
            assert (observer.replica_id, observer.log_end_offset) == (3, -1)
            assert observer.last_caught_up_timestamp == observer.last_fetch_timestamp == -1
            addresses = [(it.host, it.port) for node in answer.nodes for it in node.listeners]
            assert addresses == [cluster.brokers[it].addresses[0] for it in (1, 2)]

    run(main)


def test_broker_that_lags_has_an_earlier_end_and_is_not_caught_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            behind = cluster.image.version + 1
            cluster.homes[2].is_live = False  # reads no further, but answers
            await cluster.create_topic("t", 1)
            _, partition = await describe(cluster, 1, version=1)
            one, two = partition.current_voters
            assert (two.log_end_offset, one.log_end_offset) == (behind, partition.high_watermark)
            assert two.last_caught_up_timestamp == -1
            assert one.last_caught_up_timestamp > 0

    run(main)


def test_controller_that_has_just_stopped_is_a_voter_whose_end_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            cluster.homes[1].controller_id = 2
            await cluster.stop(2)
            _, partition = await describe(cluster, 1, version=0)
            ends = [(it.replica_id, it.log_end_offset) for it in partition.current_voters]
            assert ends == [(1, partition.high_watermark), (2, -1)]
            assert partition.error_code == ErrorCode.NONE

    run(main)
