"""OffsetDelete, v0: delete committed offsets of topics that the group does not consume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may, split_topics
from millstream.broker.services import RequestContext
from millstream.coordination.groups.group import require_group_id
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

    from millstream.protocol.messages import Fields


async def offset_delete(context: RequestContext, request: OffsetDeleteRequest) -> Fields:
    if not may(context, Operation.DELETE, ResourceType.GROUP, request.group_id):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []}
    readable, refused = split_topics(
        context, Operation.READ, request.topics, lambda topic: topic.name
    )
    known = {
        (topic.name, partition.partition_index)
        for topic in readable
        for partition in topic.partitions
        if _exists(context, topic.name, partition.partition_index)
    }
    wanted = [
        (
            topic.name,
            tuple(
                partition.partition_index
                for partition in topic.partitions
                if (topic.name, partition.partition_index) in known
            ),
        )
        for topic in request.topics
    ]
    groups = context.services.coordinators.groups
    try:
        require_group_id(request.group_id)
        outcomes = await groups.run(
            request.group_id, lambda shard, _: shard.delete_offsets(request.group_id, wanted)
        )
    except ApiError as error:
        return {"error_code": error.code, "topics": []}
    errors = {(outcome.topic, outcome.partition): outcome.error for outcome in outcomes}
    errors |= {
        (topic.name, partition.partition_index): ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for topic in refused
        for partition in topic.partitions
    }
    return {
        "error_code": ErrorCode.NONE,
        "topics": [_answer(topic, errors) for topic in request.topics],
    }


def _exists(context: RequestContext, topic: str, partition: int) -> bool:
    known = context.services.metadata.image.topics.get(topic)
    return known is not None and 0 <= partition < len(known.partitions)


def _answer(topic: Any, errors: dict[tuple[str, int], ErrorCode]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": partition.partition_index,
                "error_code": errors.get(
                    (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                ),
            }
            for partition in topic.partitions
        ],
    }
