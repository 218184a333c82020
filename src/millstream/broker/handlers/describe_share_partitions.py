"""DescribeSharePartitions, v0, an API of our own: records in flight and the members that hold them.

Answered by the leader of each partition. A partition that no member fetches from is not loaded:
then the persisted state is the whole state. Delayed records have the state 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_group, split_topics
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import require_share_groups
from millstream.coordination.share_state import DELAYED, SharePartitionKey, StateBatch
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.sharing.leader import InFlight
    from millstream.protocol.messages import Fields
    from millstream.protocol.own.describe_share_partitions import DescribeSharePartitionsRequest


async def describe_share_partitions(
    context: RequestContext, request: DescribeSharePartitionsRequest
) -> Fields:
    try:
        require_share_groups(context.services.metadata.image)
        require_group(context, Operation.DESCRIBE, request.group_id)
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message, "topics": []}
    visible, hidden = split_topics(
        context, Operation.DESCRIBE, request.topics, lambda topic: topic.topic_name
    )
    # Once each, however often a request names it.
    wanted: dict[str, dict[int, None]] = {}
    for topic in visible:
        wanted.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
    topics = [await _topic(context, request.group_id, *it) for it in wanted.items()]
    refused = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topics += [
        {
            "topic_name": topic.topic_name,
            "partitions": [_failed(index, refused) for index in topic.partitions],
        }
        for topic in hidden
    ]
    return {"error_code": ErrorCode.NONE, "topics": topics}


async def _topic(
    context: RequestContext, group_id: str, name: str, indexes: Iterable[int]
) -> dict[str, Any]:
    failed: list[dict[str, Any]] = []
    here: list[int] = []
    for index in indexes:
        try:
            context.services.partitions.find(name, index)
            here.append(index)
        except ApiError as error:
            failed.append(_failed(index, error))
    found = await asyncio.gather(*(_partition(context, group_id, name, it) for it in here))
    return {"topic_name": name, "partitions": [*found, *failed]}


async def _partition(
    context: RequestContext, group_id: str, topic: str, index: int
) -> dict[str, Any]:
    services = context.services
    try:
        services.partitions.find(topic, index)  # it may have moved meanwhile
        key = SharePartitionKey(group_id, services.metadata.image.topics[topic].id, index)
        leader = services.share_partitions.get(*key)
        in_flight = None if leader is None else leader.in_flight()
        if in_flight is not None:
            batches = _live(in_flight)
        else:
            state = await services.coordinators.share_persister.peek(key)
            batches = _persisted(state.batches, services.clock.now_ms())
    except ApiError as error:
        return _failed(index, error)
    return {"partition_index": index, "error_code": ErrorCode.NONE, "batches": batches}


def _live(in_flight: Iterable[InFlight]) -> list[dict[str, Any]]:
    return [
        {
            "first_offset": it.first_offset,
            "last_offset": it.last_offset,
            "delivery_state": DELAYED if it.is_delayed else int(it.state),
            "delivery_count": it.delivery_count,
            "member_id": it.member_id,
            "remaining_ms": it.remaining_ms,
        }
        for it in in_flight
    ]


def _persisted(batches: Iterable[StateBatch], now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "first_offset": it.first_offset,
            "last_offset": it.last_offset,
            "delivery_state": DELAYED if it.due_ms > now_ms else int(it.delivery_state),
            "delivery_count": it.delivery_count,
            "remaining_ms": it.due_ms - now_ms if it.due_ms > now_ms else -1,
        }
        for it in batches
    ]


def _failed(index: int, error: ApiError) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": error.code,
        "error_message": error.message or error.code.description,
        "batches": [],
    }
