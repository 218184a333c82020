"""What tests of share groups' handlers share: one member of group `g`, over the wire."""

from __future__ import annotations

from typing import Any

from tests.broker.serving import WireClient

SHARE_GROUP_HEARTBEAT, SHARE_GROUP_DESCRIBE = 76, 77
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92


async def beat(client: WireClient, epoch: int = 0, **changes: Any) -> Any:
    """A heartbeat of member `m`: the first one joins, to read `orders`."""
    names = ("orders",) if epoch == 0 else None
    fields = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": epoch,
        "rack_id": None,
        "subscribed_topic_names": names,
    }
    return await client.call(SHARE_GROUP_HEARTBEAT, 1, **{**fields, **changes})


async def empty_group(client: WireClient) -> None:
    """A group that has positions in `orders`, and no members."""
    assert (await beat(client)).error_code.value == 0
    assert (await beat(client, -1)).error_code.value == 0


async def alter(client: WireClient, *offsets: int, topic: str = "orders") -> Any:
    """Set the positions in partitions 0, 1 and so on."""
    partitions = [
        {"partition_index": index, "start_offset": offset} for index, offset in enumerate(offsets)
    ]
    topics = [{"topic_name": topic, "partitions": partitions}]
    return await client.call(ALTER_OFFSETS, 0, group_id="g", topics=topics)


async def offsets(client: WireClient, topics: Any = None, version: int = 1) -> Any:
    groups = [{"group_id": "g", "topics": topics}]
    return (await client.call(DESCRIBE_OFFSETS, version, groups=groups)).groups[0]
