"""DescribeSharePartitions over the wire: what is held, by whom, and what is only persisted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.broker.server import BrokerServer
from millstream.coordination.share_state import DeliveryState, SharePartitionKey, StateBatch
from millstream.errors import ErrorCode
from millstream.records.record import Record, encode_batch
from tests.broker.handlers.group_calls import run
from tests.broker.handlers.share_group_calls import alter, empty_group
from tests.broker.serving import WireClient

DELAYED = 10
KEY = 20000


async def described(client: WireClient, topic: str = "orders", index: int = 0) -> Any:
    topics = [{"topic_name": topic, "partitions": [index]}]
    answer = await client.call(KEY, 0, group_id="g", topics=topics)
    assert answer.error_code.value == 0
    return answer.topics[0].partitions[0]


async def prepare(server: BrokerServer, client: WireClient) -> SharePartitionKey:
    """Ten records, of which the group has delivered the first six."""
    batch = encode_batch([Record(index, 0, None, b"x") for index in range(10)])
    await server.partitions.find("orders", 0).append(batch, acks=-1)
    await alter(client, 0)
    await empty_group(client)
    key = SharePartitionKey("g", server.metadata.image.topics["orders"].id, 0)
    state = await server.coordinators.share_state.read(key, 1)
    due_ms = server.services.clock.now_ms() + 60_000
    await server.coordinators.share_state.write(
        key,
        state_epoch=state.state_epoch,
        leader_epoch=1,
        start_offset=0,
        delivery_complete_count=2,
        batches=(
            StateBatch(0, 1, DeliveryState.AVAILABLE, 3),
            StateBatch(2, 3, DeliveryState.ACKNOWLEDGED, 1),
            StateBatch(4, 5, DeliveryState.AVAILABLE, 1, due_ms),
        ),
    )
    return key


def test_persisted_state_is_told_where_nobody_reads(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await prepare(server, client)
        released, done, delayed = (await described(client)).batches
        assert (released.first_offset, released.last_offset) == (0, 1)
        assert (released.delivery_state, released.delivery_count) == (0, 3)
        assert (done.delivery_state, done.member_id) == (2, None)
        assert delayed.delivery_state == DELAYED
        assert 0 < delayed.remaining_ms <= 60_000

    run(tmp_path, scenario)


def test_partition_that_is_not_there_has_an_error(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        found = await described(client, index=99)
        assert found.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = await described(client, topic="absent")
        assert found.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, scenario)


def test_partition_that_is_named_often_is_told_once(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await prepare(server, client)
        topics = [{"topic_name": "orders", "partitions": [0] * 1000 + [99]}] * 2
        answer = await client.call(KEY, 0, group_id="g", topics=topics)
        (found,) = answer.topics
        assert [it.partition_index for it in found.partitions] == [0, 99]

    run(tmp_path, scenario)
