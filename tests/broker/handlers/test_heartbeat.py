"""Heartbeat in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import HEARTBEAT, run, stable_member
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(5))
def test_member_is_alive(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await stable_member(client)
        fields = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
        for changes, expected in (
            ({}, ErrorCode.NONE),
            ({"generation_id": 7}, ErrorCode.ILLEGAL_GENERATION),
            ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"group_id": "nowhere"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            answer = await client.call(HEARTBEAT, version, **fields | changes)
            assert answer.error_code.value == expected

    run(tmp_path, scenario)
