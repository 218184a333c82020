"""OffsetFetch in every version."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import OFFSET_FETCH, commit, run
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(1, 8))
def test_one_group_is_fetched(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        assert await commit(client, 42, partition=1) == ErrorCode.NONE
        topics = [{"name": "orders", "partition_indexes": [0, 1]}]
        answer = await client.call(OFFSET_FETCH, version, group_id="g", topics=topics)
        none, one = answer.topics[0].partitions
        assert (none.committed_offset, none.metadata) == (-1, "")
        assert (one.committed_offset, one.metadata) == (42, "note")
        if version >= 2:
            everything = await client.call(OFFSET_FETCH, version, group_id="g", topics=None)
            assert [it.partition_index for it in everything.topics[0].partitions] == [1]

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(8, 11))
def test_several_groups_are_fetched(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 42)
        await commit(client, 7, group_id="other")
        topic_id = server.metadata.image.topics["orders"].id
        topic = {"name": "orders", "topic_id": topic_id, "partition_indexes": [0]}
        answer = await client.call(
            OFFSET_FETCH,
            version,
            groups=[
                {"group_id": "g", "topics": [topic]},
                {"group_id": "other", "topics": None},
                {"group_id": "nowhere", "topics": None},
            ],
        )
        offsets = [
            [it.committed_offset for topic in group.topics for it in topic.partitions]
            for group in answer.groups
        ]
        assert offsets == [[42], [7], []]
        assert {group.error_code.value for group in answer.groups} == {ErrorCode.NONE}

    run(tmp_path, scenario)


def test_unknown_topic_id_is_told(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        unknown = uuid.uuid4()
        topics = [{"topic_id": unknown, "partition_indexes": [3]}]
        answer = await client.call(OFFSET_FETCH, 10, groups=[{"group_id": "g", "topics": topics}])
        topic = answer.groups[0].topics[0]
        assert topic.topic_id == unknown
        assert topic.partitions[0].error_code.value == ErrorCode.UNKNOWN_TOPIC_ID
        assert topic.partitions[0].partition_index == 3

    run(tmp_path, scenario)
