"""JoinGroup in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import JOIN_GROUP, join, join_fields, run
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", range(10))
def test_member_joins_and_leads(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await join(client, version)
        assert answer.error_code.value == ErrorCode.NONE
        assert answer.generation_id == 1
        assert answer.leader == answer.member_id
        assert answer.protocol_name == "range"
        assert [(it.member_id, it.metadata) for it in answer.members] == [
            (answer.member_id, b"metadata")
        ]

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(10))
def test_refusal_echoes_the_member(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        for changes, expected in (
            ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"session_timeout": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ):
            fields = join_fields(**changes)
            answer = await client.call(JOIN_GROUP, version, **fields)
            assert answer.error_code.value == expected
            assert answer.member_id == fields["member_id"]
            assert answer.protocol_name in ("", None)

    run(tmp_path, scenario)


def test_member_is_known_by_client_id_and_host(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        joined = await join(client, group_instance_id="instance")
        assert joined.member_id.startswith("instance-")
        described = await server.coordinators.groups.read(
            "g", lambda shard: shard.describe_group("g")
        )
        assert described.members[0].client_id == "test"
        assert described.members[0].client_host == "/127.0.0.1"

    run(tmp_path, scenario)


def test_oldest_version_has_one_timeout_for_both(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await join(client, 0, session_timeout=7_000)
        groups = await server.coordinators.groups.read("g", lambda shard: shard.groups)
        assert groups["g"].members.rebalance_timeout_ms == 7_000  # type: ignore[attr-defined]

    run(tmp_path, scenario)
