"""OffsetCommit in every version."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import OFFSET_COMMIT, commit, run, stable_member
from tests.broker.serving import WireClient


def partition(index: int, offset: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": 2,
        "committed_metadata": "note",
    }


async def committed(server: BrokerServer, index: int) -> Any:
    return await server.coordinators.groups.read(
        "g", lambda shard: shard.offsets.get("g", "orders", index)
    )


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_is_kept(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        topic_id = server.metadata.image.topics["orders"].id
        topics = [{"name": "orders", "topic_id": topic_id, "partitions": [partition(1, 42)]}]
        answer = await client.call(
            OFFSET_COMMIT,
            version,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=topics,
        )
        assert answer.topics[0].partitions[0].error_code.value == ErrorCode.NONE
        value = await committed(server, 1)
        assert (value.offset, value.metadata, value.topic_id) == (42, "note", topic_id)
        assert value.leader_epoch == (2 if version >= 6 else -1)

    run(tmp_path, scenario)


def test_what_does_not_exist_is_refused_by_itself(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        topics = [
            {"name": "nothing", "partitions": [partition(0, 1)]},
            {"name": "orders", "partitions": [partition(7, 1), partition(0, 5), partition(-1, 1)]},
        ]
        answer = await client.call(
            OFFSET_COMMIT,
            9,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=topics,
        )
        codes = [[it.error_code.value for it in topic.partitions] for topic in answer.topics]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[unknown], [unknown, ErrorCode.NONE, unknown]]
        assert (await committed(server, 0)).offset == 5

    run(tmp_path, scenario)


def test_unknown_topic_id_is_refused(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        unknown = uuid.uuid4()
        answer = await client.call(
            OFFSET_COMMIT,
            10,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"topic_id": unknown, "partitions": [partition(0, 1)]}],
        )
        assert answer.topics[0].topic_id == unknown
        code = answer.topics[0].partitions[0].error_code.value
        assert code == ErrorCode.UNKNOWN_TOPIC_ID

    run(tmp_path, scenario)


def test_commit_asking_for_its_own_retention_expires(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await client.call(
            OFFSET_COMMIT,
            4,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time=1_000,
            topics=[{"name": "orders", "partitions": [partition(0, 1)]}],
        )
        value = await committed(server, 0)
        assert value.expire_timestamp_ms == value.commit_timestamp_ms + 1_000

    run(tmp_path, scenario)


def test_refusal_stands_with_every_partition(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await stable_member(client)
        assert await commit(client, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        stale = await commit(client, 1, generation_id_or_member_epoch=7, group_id="nowhere")
        assert stale == ErrorCode.GROUP_ID_NOT_FOUND

    run(tmp_path, scenario)
