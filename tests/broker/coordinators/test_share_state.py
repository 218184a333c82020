"""The share state persister on a real log."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinators.key_hash import partition_for
from millstream.broker.coordinators.share_state import _kept_shard_of, coordinator_key, shard_of
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import TopicImage
from millstream.coordination.share_state import (
    DeliveryState,
    SharePartitionKey,
    StateBatch,
    StateWrite,
)
from millstream.errors import ApiError, ErrorCode
from tests.broker.serving import serving
from tests.broker.sharing.calls import produce

AVAILABLE, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED
SHARE_STATE = "__share_group_state"


async def make_topic(server: BrokerServer, name: str = "orders") -> SharePartitionKey:
    made = (await server.topics.create([NewTopic(name, partition_count=3)]))[name]
    assert isinstance(made, TopicImage)
    await produce(server, 20, topic=name)
    return SharePartitionKey("g", made.id, 0)


def write_of(key: SharePartitionKey, *batches: StateBatch, **changes: Any) -> StateWrite:
    return StateWrite(key, 1, 0, 0, 0, batches)._replace(**changes)


async def write(server: BrokerServer, key: SharePartitionKey, *batches: StateBatch) -> None:
    await server.coordinators.share_state.write(
        key,
        state_epoch=1,
        leader_epoch=0,
        start_offset=0,
        delivery_complete_count=0,
        batches=batches,
    )


def test_nothing_is_kept_of_long_group_ids() -> None:
    _kept_shard_of.cache_clear()
    for group_id, count in (("g", 1), ("g" * 30_000, 1), ("h", 2)):
        key = SharePartitionKey(group_id, uuid.UUID(int=7), 0)
        assert shard_of(key, 50) == partition_for(coordinator_key(key), 50)
        assert _kept_shard_of.cache_info().currsize == count


def test_state_and_due_times_survive_a_restart(tmp_path: Path) -> None:
    batch = StateBatch(3, 4, AVAILABLE, 2, due_ms=123_456)

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            key = await make_topic(server)
            persister = server.coordinators.share_state
            await persister.initialize(key, 1, 0)
            await persister.read(key, 0)
            await write(server, key, batch)
        async with serving(tmp_path) as server:
            persister = server.coordinators.share_state
            # Whoever asks while it is loading waits.
            assert (await persister.read(key, 0)).batches == (batch,)
            await write(server, key, StateBatch(3, 3, ACKNOWLEDGED, 3))
            assert len((await persister.peek(key)).batches) == 2

    asyncio.run(scenario())


def test_answer_comes_when_it_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            key = await make_topic(server)
            await server.coordinators.share_state.initialize(key, 1, 0)
            count = len(server.metadata.image.topics[SHARE_STATE].partitions)
            index = partition_for(coordinator_key(key), count)
            partition = server.partitions.get(SHARE_STATE, index)
            assert partition is not None
            assert partition.log.flushed_offset == 1
            await write(server, key, StateBatch(0, 0, ACKNOWLEDGED, 1))
            assert partition.log.flushed_offset == 2

    asyncio.run(scenario())


def test_key_is_that_of_kafka() -> None:
    topic_id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    key = SharePartitionKey("my-group", topic_id, 12)
    assert coordinator_key(key) == "my-group:ABEiM0RVZneImaq7zN3u_w:12"


def test_writes_of_one_turn_share_a_flush(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            key = await make_topic(server)
            persister = server.coordinators.share_state
            keys = [key._replace(partition=partition) for partition in range(3)]
            for each in keys[:2]:
                await persister.initialize(each, 1, 0)
            batch = StateBatch(0, 0, ACKNOWLEDGED, 1)
            outcomes = await persister.write_all([write_of(each, batch) for each in keys])
            assert outcomes[:2] == [None, None]
            assert outcomes[2] is not None
            assert outcomes[2].code is ErrorCode.INVALID_REQUEST
            for each in keys[:2]:
                assert (await persister.peek(each)).batches == (batch,)

    asyncio.run(scenario())


def test_nothing_is_made_for_those_who_only_ask(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            key = await make_topic(server)
            persister = server.coordinators.share_state
            assert (await persister.read_summary(key, 0)).start_offset == -1
            await persister.delete(key)
            with pytest.raises(ApiError) as error:
                await persister.read(key, 0)
            assert error.value.code is ErrorCode.INVALID_REQUEST
            with pytest.raises(ApiError) as error:
                await write(server, key)
            assert error.value.code is ErrorCode.INVALID_REQUEST
            assert SHARE_STATE not in server.metadata.image.topics

    asyncio.run(scenario())


def test_state_goes_with_its_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            key = await make_topic(server)
            persister = server.coordinators.share_state
            await persister.initialize(key, 1, 0)
            await server.topics.delete([key.topic_id])
            with pytest.raises(ApiError) as error:
                await persister.peek(key)
            assert error.value.code is ErrorCode.INVALID_REQUEST

    asyncio.run(scenario())


def test_superfluous_records_are_pruned(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "share_coordinator_state_topic_num_partitions": 1,
        "share_coordinator_snapshot_update_records_per_snapshot": 3,
    }

    async def scenario() -> None:
        async with serving(tmp_path, **settings) as server:
            key = await make_topic(server)
            persister = server.coordinators.share_state
            await persister.initialize(key, 1, 0)
            for offset in range(10):
                await write(server, key, StateBatch(2 * offset, 2 * offset, ACKNOWLEDGED, 1))
            partition = server.partitions.get(SHARE_STATE, 0)
            assert partition is not None
            await persister.prune()
            assert partition.log_start_offset == 8  # 0, 4 and 8 are snapshots
        async with serving(tmp_path, **settings) as server:
            state = await server.coordinators.share_state.read(key, 0)
            assert [it.first_offset for it in state.batches] == list(range(0, 20, 2))

    asyncio.run(scenario())
