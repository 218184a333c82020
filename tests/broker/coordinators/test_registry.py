"""Where keys belong, and what the coordinators hear of the rest of the broker."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from millstream.broker.coordinators.registry import TOPIC_OF
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millstream.errors import ErrorCode
from millstream.protocol.apis import CoordinatorKind
from tests.broker.coordinators.test_lag import produce
from tests.broker.handlers.group_calls import commit, run
from tests.broker.peers.cluster import Cluster
from tests.broker.peers.cluster import run as run_cluster
from tests.broker.peers.test_markers import Writer
from tests.broker.serving import WireClient, serving
from tests.peers.patience import PATIENCE_SECONDS

PARTITIONS_SETTING_OF = {
    CoordinatorKind.GROUP: "offsets.topic.num.partitions",
    CoordinatorKind.TRANSACTION: "transaction.state.log.num.partitions",
    CoordinatorKind.SHARE: "share.coordinator.state.topic.num.partitions",
}


@pytest.mark.parametrize("kind", list(CoordinatorKind))
def test_first_question_makes_the_topic_of_its_kind(tmp_path: Path, kind: CoordinatorKind) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert TOPIC_OF[kind] not in server.metadata.image.topics
            broker = await server.coordinators.find(kind, "key")
            assert broker.id == server.id
            assert TOPIC_OF[kind] in server.metadata.image.topics

    asyncio.run(scenario())


def test_many_first_questions_make_one_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            find = server.coordinators.find
            found = await asyncio.gather(
                *(find(CoordinatorKind.GROUP, f"g{number}") for number in range(10))
            )
            assert {broker.id for broker in found} == {server.id}

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", list(CoordinatorKind))
def test_everyone_who_asks_first_waits_until_all_logs_are_open(
    tmp_path: Path, kind: CoordinatorKind
) -> None:
    """The topic is known before that, but a partition without a log coordinates nothing."""
    count = 100

    async def scenario() -> None:
        async with serving(tmp_path, **{PARTITIONS_SETTING_OF[kind]: count}) as server:

            async def open_logs_when_answered() -> int:
                await server.coordinators.find(kind, "key")
                logs = (server.partitions.get(TOPIC_OF[kind], it) for it in range(count))
                return sum(it is not None for it in logs)

            answers = await asyncio.gather(*(open_logs_when_answered() for _ in range(3)))
            assert answers == [count] * 3

    asyncio.run(scenario())


def test_lag_is_checked_in_the_interval_of_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        partition = await produce(server, now_ms, now_ms)
        partition.delete_records_before(1)
        await commit(client, 0)
        while "1 records were deleted before the group had read them" not in caplog.text:
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING, "millstream.lag"):
        run(tmp_path, scenario, **{"log.retention.check.interval.ms": 5})


JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 11, 8, 9, 10


async def coordinator_of(client: WireClient, group_id: str) -> tuple[int, str, int]:
    answer = await client.call(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group_id])
    (found,) = answer.coordinators
    assert found.error_code == ErrorCode.NONE
    return found.node_id, found.host, found.port


async def committed(client: WireClient) -> tuple[int, int]:
    """The error and the offset that group g has committed."""
    groups = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = (await client.call(OFFSET_FETCH, 8, groups=groups)).groups[0]
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await asyncio.sleep(0.005)
    if answer.error_code:
        return answer.error_code, -1
    return ErrorCode.NONE, answer.topics[0].partitions[0].committed_offset


def test_coordinator_moves_with_the_leadership_of_its_partition(tmp_path: Path) -> None:
    """Requests that wait at the former one are answered."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 1)
        first, second = cluster.clients[1], cluster.clients[2]
        for client in (first, second):
            assert await coordinator_of(client, "g") == (1, *cluster.brokers[1].addresses[0])
        partition = {"partition_index": 0, "committed_offset": 5}
        topics = [{"name": "t", "partitions": [partition]}]
        answer = await first.call(OFFSET_COMMIT, 7, group_id="g", topics=topics)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await committed(first) == (ErrorCode.NONE, 5)
        assert await committed(second) == (ErrorCode.NOT_COORDINATOR, -1)
        protocols = [{"name": "range", "metadata": b""}]
        timeouts = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
        kind = {"protocol_type": "consumer", "protocols": protocols}
        first.send(JOIN_GROUP, 3, group_id="h", member_id="", **timeouts, **kind)
        groups = cluster.brokers[1].coordinators.groups
        while not any(loaded._waiting for loaded in groups._runtime._shards.values()):
            await asyncio.sleep(0.005)
        await cluster.elect(OFFSETS_TOPIC, 0, 2)
        assert (await first.receive(JOIN_GROUP, 3)).error_code == ErrorCode.NOT_COORDINATOR
        for client in (first, second):
            assert await coordinator_of(client, "g") == (2, *cluster.brokers[2].addresses[0])
        assert await committed(first) == (ErrorCode.NOT_COORDINATOR, -1)
        assert (await committed(second))[0] == ErrorCode.NONE
        await cluster.elect(OFFSETS_TOPIC, 0, 1)
        assert (await committed(first))[0] == ErrorCode.NONE
        assert await committed(second) == (ErrorCode.NOT_COORDINATOR, -1)

    run_cluster(tmp_path, scenario, group_initial_rebalance_delay_ms=600_000)


def test_shard_of_an_earlier_leader_epoch_is_loaded_again(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        runtime = cluster.brokers[1].coordinators.transactions._runtime
        before = runtime.shard(0)
        await cluster.create("t", 1)  # another change of the metadata
        assert runtime.shard(0) is before
        await cluster.elect(TRANSACTIONS_TOPIC, 0, 1)  # the same leader, in a new epoch
        assert runtime.shard(0) is not before

    run_cluster(tmp_path, scenario)


def test_prepared_transaction_is_left_to_the_next_coordinator(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 2)
        writer = Writer(cluster, 1, protocol=2)
        await writer.begin()
        assert await writer.produce("t", 0, b"a", 2) == 0
        await cluster.stop(2)
        assert await writer.end(commit=True) == 0
        transactions = cluster.brokers[1].coordinators.transactions
        await asyncio.sleep(0)
        assert transactions._markers
        await cluster.elect(TRANSACTIONS_TOPIC, 0, 3)
        assert not transactions._markers

    run_cluster(tmp_path, scenario)
