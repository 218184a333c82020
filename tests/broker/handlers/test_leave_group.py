"""LeaveGroup in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import LEAVE_GROUP, run, stable_member
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(3))
def test_one_member_leaves(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await stable_member(client)
        fields = {"group_id": "g", "member_id": joined.member_id}
        answer = await client.call(LEAVE_GROUP, version, **fields)
        assert answer.error_code.value == ErrorCode.NONE
        again = await client.call(LEAVE_GROUP, version, **fields)
        assert again.error_code.value == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(6))
def test_members_of_a_group_that_is_not_there_are_unknown(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        member = {"member_id": "m", "group_instance_id": None}
        answer = await client.call(
            LEAVE_GROUP, version, group_id="nowhere", member_id="m", members=[member]
        )
        if version < 3:
            assert answer.error_code.value == ErrorCode.UNKNOWN_MEMBER_ID
        else:
            assert answer.error_code.value == ErrorCode.NONE
            assert answer.members[0].error_code.value == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(3, 6))
def test_several_members_leave(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await stable_member(client, group_instance_id="instance")
        members = [
            {"member_id": "", "group_instance_id": "instance", "reason": "shrinking"},
            {"member_id": "stranger", "group_instance_id": None},
        ]
        answer = await client.call(LEAVE_GROUP, version, group_id="g", members=members)
        assert answer.error_code.value == ErrorCode.NONE
        assert [it.error_code.value for it in answer.members] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        assert answer.members[0].group_instance_id == "instance"

    run(tmp_path, scenario)
