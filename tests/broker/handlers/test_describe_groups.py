"""DescribeGroups in every version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from millstream.protocol.metadata import OPERATIONS_NOT_ASKED
from tests.broker.handlers.group_calls import DESCRIBE_GROUPS, run, stable_member
from tests.broker.serving import WireClient, serving

EVERYTHING = sum(1 << operation for operation in (3, 6, 8, 10, 11))


@pytest.mark.parametrize("version", range(7))
def test_every_group_is_in_the_answer(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await stable_member(client)
        answer = await client.call(DESCRIBE_GROUPS, version, groups=["g", "nowhere"])
        group, missing = answer.groups
        assert (group.group_id, group.group_state, group.protocol_data) == ("g", "Stable", "range")
        assert group.members[0].member_id == joined.member_id
        assert group.members[0].member_assignment == b"assigned"
        assert (missing.group_id, missing.group_state) == ("nowhere", "Dead")
        expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert missing.error_code.value == expected

    run(tmp_path, scenario)


def test_operations_are_told_when_asked(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await stable_member(client)
        for asked, expected in (
            (True, EVERYTHING),
            (False, OPERATIONS_NOT_ASKED),
        ):
            answer = await client.call(
                DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=asked
            )
            assert answer.groups[0].authorized_operations == expected

    run(tmp_path, scenario)


def test_group_before_any_coordinator_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            answer = await client.call(DESCRIBE_GROUPS, 6, groups=["g"])
            assert answer.groups[0].error_code.value == ErrorCode.GROUP_ID_NOT_FOUND

    asyncio.run(scenario())
