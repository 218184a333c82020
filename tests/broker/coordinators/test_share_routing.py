"""Share groups over two brokers: the state is kept by one, the partition is led by the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.coordinators import share_routing
from millstream.coordination.cluster import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode
from tests.broker.handlers.share_group_calls import alter, beat, empty_group, offsets
from tests.broker.peers.cluster import Cluster, run
from tests.broker.sharing.calls import ACCEPT, ENDLESS_MS, acquired, joined, produce
from tests.peers.patience import PATIENCE_SECONDS


async def shared(cluster: Cluster, *leaders: int, state: int = 2) -> SharePartitionKey:
    """Topic `orders`, which group `g` reads from the beginning; broker 1 coordinates the group."""
    await cluster.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
    await cluster.create(SHARE_STATE_TOPIC, state)
    return SharePartitionKey("g", await cluster.create("orders", *leaders), 0)


def test_members_consume_from_both_brokers(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await shared(cluster, 1, 2)
        answer = await beat(cluster.clients[1])
        assert answer.error_code == 0
        await beat(cluster.clients[1], answer.member_epoch)
        persister = cluster.brokers[1].coordinators.share_persister
        for index, broker in ((0, 1), (1, 2)):
            await persister.initialize(key._replace(partition=index), 1, 0)
            await produce(cluster.brokers[broker], 5, topic="orders", index=index)
            async with joined(cluster.brokers[broker], key.topic_id, "m") as member:
                fetched = await member.fetch(partitions=(index,), max_wait=ENDLESS_MS)
                assert acquired(fetched, index) == [(0, 4, 1)]
                acked = await member.acknowledge((0, 2, (ACCEPT,)), partition=index)
                assert acked.responses[0].partitions[0].error_code == 0
            summary = await persister.read_summary(key._replace(partition=index), -1)
            assert summary.start_offset == 3

    run(tmp_path, scenario)


def test_offsets_are_altered_and_described_across_brokers(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await shared(cluster, 2, 1)
        client = cluster.clients[1]
        await empty_group(client)
        await produce(cluster.brokers[2], 10, topic="orders")
        answer = await alter(client, 3, 0)
        codes = [it.error_code for it in answer.responses[0].partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE]
        described = (await offsets(client)).topics[0].partitions
        assert [(it.start_offset, it.error_code) for it in described] == [(3, 0), (0, 0)]

    run(tmp_path, scenario)


def test_requests_wait_while_the_state_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_routing, "GIVE_UP_SECONDS", PATIENCE_SECONDS)

    async def scenario(cluster: Cluster) -> None:
        key = await shared(cluster, 1)
        persister = cluster.brokers[1].coordinators.share_persister
        await persister.initialize(key, 1, 7)
        await cluster.stop(2)
        waiting = asyncio.ensure_future(persister.read(key, 0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await cluster.start(2)
        assert (await waiting).start_offset == 7

    run(tmp_path, scenario)


def test_requests_give_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_routing, "GIVE_UP_SECONDS", 0.1)

    async def scenario(cluster: Cluster) -> None:
        key = await shared(cluster, 1)
        await cluster.stop(2)
        with pytest.raises(ApiError) as error:
            await cluster.brokers[1].coordinators.share_persister.read(key, 0)
        assert error.value.code is ErrorCode.LEADER_NOT_AVAILABLE

    run(tmp_path, scenario)


def test_nothing_is_kept_before_the_first_group(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        key = SharePartitionKey("g", await cluster.create("orders", 2), 0)
        persister = cluster.brokers[1].coordinators.share_persister
        assert (await persister.read_summary(key, -1)).start_offset == -1
        await persister.delete(key)
        assert SHARE_STATE_TOPIC not in cluster.brokers[1].metadata.image.topics
        await persister.initialize(key, 1, 4)  # creates the topic, on any brokers
        other = cluster.brokers[2].coordinators.share_persister
        assert (await other.read_summary(key, -1)).start_offset == 4

    run(tmp_path, scenario, share_coordinator_state_topic_num_partitions=4)
