"""The table of share partitions: made on demand, forgotten when told, ended with the broker."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from millstream.broker.server import BrokerServer
from millstream.coordination.share_state import DeliveryState, SharePartitionKey, StateBatch
from millstream.errors import ApiError, ErrorCode
from tests.broker.serving import serving
from tests.broker.sharing.calls import acquired, begin, joined, make_topic, produce, run


def test_leader_is_made_once_for_each_group(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        await begin(server, topic_id, group="h")
        table = server.services.share_partitions
        leader = table.open("g", topic_id, 0)
        assert table.open("g", topic_id, 0) is leader
        assert table.open("h", topic_id, 0) is not leader

    run(tmp_path, scenario)


def test_leader_of_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        for asked_id, index, code in (
            (topic_id, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (uuid4(), 0, ErrorCode.UNKNOWN_TOPIC_ID),
        ):
            with pytest.raises(ApiError) as error:
                server.services.share_partitions.open("g", asked_id, index)
            assert error.value.code is code
            assert server.services.share_partitions.get("g", asked_id, index) is None

    run(tmp_path, scenario)


def test_leader_that_cannot_load_is_forgotten(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        leader = server.services.share_partitions.open("never initialized", topic_id, 0)
        while leader.error is None:
            await asyncio.sleep(0)
        assert leader.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert server.services.share_partitions.get("never initialized", topic_id, 0) is None

    run(tmp_path, scenario)


def test_forgetting_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        key = SharePartitionKey("stranger", topic_id, 0)
        server.services.share_partitions.forget(key)
        assert server.services.share_partitions.describe(key) == []

    run(tmp_path, scenario)


def test_clean_stop_persists_the_delivery_counts_of_what_is_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as connections, serving(tmp_path) as server:
            topic_id = await make_topic(server)
            await produce(server, 10)
            member = await connections.enter_async_context(joined(server, topic_id))
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 9, 1)]
        async with serving(tmp_path) as server:
            state = await server.coordinators.share_state.read(
                SharePartitionKey("g", topic_id, 0), 0
            )
            assert state.batches == (StateBatch(0, 9, DeliveryState.AVAILABLE, 1),)

    asyncio.run(scenario())
