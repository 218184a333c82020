"""DeleteShareGroupOffsets over the wire; and DeleteGroups, for a share group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import DELETE_GROUPS, run
from tests.broker.handlers.share_group_calls import (
    DELETE_OFFSETS,
    alter,
    beat,
    empty_group,
    offsets,
)
from tests.broker.serving import WireClient


async def delete(client: WireClient, *names: str) -> Any:
    topics = [{"topic_name": name} for name in names]
    return await client.call(DELETE_OFFSETS, 0, group_id="g", topics=topics)


def test_positions_are_deleted_topic_by_topic(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await alter(client, 5)
        answer = await delete(client, "orders", "absent")
        assert answer.error_code.value == 0
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [topic.error_code.value for topic in answer.responses] == [0, unknown]
        assert (await offsets(client)).topics == ()
        again = await delete(client, "orders")
        assert again.responses[0].error_code.value == unknown

    run(tmp_path, scenario)


def test_positions_are_not_deleted_behind_members(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await delete(client, "orders")
        assert answer.error_code.value == ErrorCode.GROUP_ID_NOT_FOUND
        await beat(client)
        answer = await delete(client, "orders")
        assert answer.error_code.value == ErrorCode.NON_EMPTY_GROUP
        answer = await client.call(DELETE_GROUPS, 2, groups_names=["g"])
        assert answer.results[0].error_code.value == ErrorCode.NON_EMPTY_GROUP

    run(tmp_path, scenario)


def test_deleted_group_begins_anew(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await alter(client, 5)
        await empty_group(client)
        answer = await client.call(DELETE_GROUPS, 2, groups_names=["g"])
        assert answer.results[0].error_code.value == 0
        assert (await offsets(client)).topics == ()
        await empty_group(client)
        (topic,) = (await offsets(client)).topics
        assert [p.start_offset for p in topic.partitions] == [-1, -1, -1]

    run(tmp_path, scenario)
