"""SyncGroup in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import SYNC_GROUP, join, run
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(6))
def test_leader_gets_its_assignment_back(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await join(client)
        answer = await client.call(
            SYNC_GROUP,
            version,
            group_id="g",
            generation_id=1,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
        )
        assert answer.error_code.value == ErrorCode.NONE
        assert answer.assignment == b"mine"
        if version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")

    run(tmp_path, scenario)


def test_refusals_carry_their_codes(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await join(client)
        fields = {
            "group_id": "g",
            "generation_id": 1,
            "member_id": joined.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        for changes, expected in (
            ({"generation_id": 7}, ErrorCode.ILLEGAL_GENERATION),
            ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ):
            answer = await client.call(SYNC_GROUP, 5, **fields | changes)
            assert answer.error_code.value == expected

    run(tmp_path, scenario)
