"""What tests of the group handlers share: a broker, a socket, and one member of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from tests.broker.serving import WireClient, serving

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP = 8, 9, 10, 11
HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 12, 13, 14, 15, 16
DELETE_GROUPS, OFFSET_DELETE = 42, 47

Scenario = Callable[[BrokerServer, WireClient], Awaitable[None]]


def run(directory: Path, scenario: Scenario, **settings: object) -> None:
    """Run a scenario against a broker with the topic `orders` of three partitions."""

    async def main() -> None:
        async with serving(directory, **settings) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("orders", partition_count=3)])
            await client.call(FIND_COORDINATOR, 3, key="g", key_type=0)
            await scenario(server, client)

    asyncio.run(main())


def join_fields(**changes: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"metadata"}],
        "reason": None,
    } | changes


async def join(client: WireClient, version: int = 9, **changes: Any) -> Any:
    """Join until it is done: a member id that is required is fetched first."""
    answer = await client.call(JOIN_GROUP, version, **join_fields(**changes))
    if answer.error_code.value == 79:  # MEMBER_ID_REQUIRED
        changes["member_id"] = answer.member_id
        answer = await client.call(JOIN_GROUP, version, **join_fields(**changes))
    return answer


async def stable_member(client: WireClient, **changes: Any) -> Any:
    """The only member of a stable group; returns its JoinGroup answer."""
    joined = await join(client, **changes)
    assert joined.error_code.value == 0
    await client.call(
        SYNC_GROUP,
        5,
        group_id=changes.get("group_id", "g"),
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=changes.get("group_instance_id"),
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"assigned"}],
    )
    return joined


async def commit(client: WireClient, offset: int, *, partition: int = 0, **changes: Any) -> int:
    """A simple commit to `orders`; returns the error code."""
    fields = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": 0,
                        "committed_metadata": "note",
                    }
                ],
            }
        ],
    } | changes
    answer = await client.call(OFFSET_COMMIT, 9, **fields)
    return int(answer.topics[0].partitions[0].error_code.value)
