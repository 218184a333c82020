"""Groups in a broker: kept over restarts, told of topics and settings."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from millstream.broker.coordinators.groups import TopicsOfImage, group_settings
from millstream.broker.coordinators.key_hash import partition_for
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage
from millstream.errors import ApiError, ErrorCode
from tests.broker.handlers.group_calls import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_FETCH,
    commit,
    join,
    join_fields,
    run,
    stable_member,
)
from tests.broker.serving import WireClient, serving


def test_groups_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def before(server: BrokerServer, client: WireClient) -> None:
        joined = await stable_member(client)
        await commit(client, 42, group_id="simple", partition=2)
        members.append(joined.member_id)

    async def after() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.coordinators.groups.all_loaded()
            beat = {"group_id": "g", "generation_id": 1, "member_id": members[0]}
            assert (await client.call(HEARTBEAT, 4, **beat)).error_code.value == ErrorCode.NONE
            answer = await client.call(OFFSET_FETCH, 7, group_id="simple", topics=None)
            assert answer.topics[0].partitions[0].committed_offset == 42

    members: list[str] = []
    run(tmp_path, before)
    asyncio.run(after())


def test_requests_before_any_coordinator_are_sent_to_find_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            groups = server.coordinators.groups
            assert groups.has_no_groups
            with pytest.raises(ApiError) as error:
                await groups.read("g", lambda shard: shard.list_groups())
            assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await groups.read_all(lambda shard: shard.list_groups()) == []

    asyncio.run(scenario())


def test_partition_that_is_offline_is_left_out_of_listings(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 1)
        groups = server.coordinators.groups
        assert len(await groups.read_all(lambda shard: shard.list_groups())) == 4
        partition = server.partitions.get("__consumer_offsets", partition_for("g", 4))
        assert partition is not None
        partition.go_offline(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone"))
        assert await commit(client, 2) == ErrorCode.NOT_COORDINATOR
        listed = await groups.read_all(lambda shard: shard.list_groups())
        assert [group for shard in listed for group in shard] == []

    run(tmp_path, scenario)


def test_offsets_of_a_deleted_topic_are_gone(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 42)
        await server.topics.delete([server.metadata.image.topics["orders"].id])
        offsets = await server.coordinators.groups.read(
            "g", lambda shard: list(shard.offsets.of_group("g"))
        )
        assert offsets == []

    run(tmp_path, scenario)


def test_client_that_goes_away_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    """Its request ends; the member itself is removed when its session times out."""

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        first = await stable_member(client)
        async with WireClient.connected(server) as other:
            required = await other.call(JOIN_GROUP, 9, **join_fields())
            other.send(JOIN_GROUP, 9, **join_fields(member_id=required.member_id))
            beat = {"group_id": "g", "generation_id": 1, "member_id": first.member_id}
            while (await client.call(HEARTBEAT, 4, **beat)).error_code.value == ErrorCode.NONE:
                pass
        rejoined = await join(client, member_id=first.member_id)
        assert rejoined.generation_id == 2
        assert len(rejoined.members) == 2

    run(tmp_path, scenario)


def test_two_members_meet(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        async with WireClient.connected(server) as other:
            # Its connection is served before the group's first members have begun to wait.
            await other.call(FIND_COORDINATOR, 3, key="g", key_type=0)
            first, second = await asyncio.gather(join(client, 3), join(other, 3))
            assert first.generation_id == second.generation_id == 1
            assert first.leader == second.leader

    run(tmp_path, scenario, **{"group.initial.rebalance.delay.ms": 1000})


def test_settings_of_groups_come_from_the_brokers() -> None:
    config = BrokerConfig.from_values(
        {"group.max.size": 3, "offsets.retention.minutes": 2, "offset.metadata.max.bytes": 9}
    )
    settings = group_settings(config)
    assert (settings.group_max_size, settings.offset_metadata_max_bytes) == (3, 9)
    assert settings.offsets_retention_ms == 120_000


def test_topics_of_an_empty_image_are_none() -> None:
    topics = TopicsOfImage(ClusterImage())
    some_id = uuid.uuid4()
    assert list(topics.names()) == []
    assert topics.topic_id("orders") is None
    assert topics.topic_name(some_id) is None
    assert topics.partition_count(some_id) is None
