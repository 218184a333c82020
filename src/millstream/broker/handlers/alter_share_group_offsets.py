"""AlterShareGroupOffsets, v0: set the start offsets of a share group without members.

A missing group is created, so that its start can be set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.broker.handlers._rights import require_group, split_topics
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import require_share_groups
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest

    from millstream.protocol.messages import Fields


async def alter_share_group_offsets(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Fields:
    services = context.services
    allowed, refused = split_topics(
        context, Operation.READ, request.topics, lambda topic: topic.topic_name
    )
    positions = [
        (topic.topic_name, partition.partition_index, partition.start_offset)
        for topic in allowed
        for partition in topic.partitions
    ]
    try:
        require_share_groups(context.services.metadata.image)
        require_group(context, Operation.READ, request.group_id)
        outcomes = await services.coordinators.share_groups.alter_offsets(
            request.group_id, positions, services.share_partitions.forget
        )
    except ApiError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or error.code.description,
            "responses": [],
        }
    topics: dict[str, dict[str, Any]] = {
        topic.topic_name: {
            "topic_name": topic.topic_name,
            "topic_id": UUID(int=0),
            "partitions": [
                _partition(it.partition_index, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                for it in topic.partitions
            ],
        }
        for topic in refused
    }
    for outcome, failure in outcomes:
        topic_id = outcome.topic_id or UUID(int=0)
        fresh: dict[str, Any] = {
            "topic_name": outcome.topic,
            "topic_id": topic_id,
            "partitions": [],
        }
        topic = topics.setdefault(outcome.topic, fresh)
        topic["partitions"].append(_partition(outcome.partition, failure))
    return {"error_code": ErrorCode.NONE, "responses": list(topics.values())}


def _partition(partition: int, failure: ApiError | None) -> dict[str, Any]:
    if failure is None:
        return {"partition_index": partition, "error_code": ErrorCode.NONE}
    return {
        "partition_index": partition,
        "error_code": failure.code,
        "error_message": failure.message or failure.code.description,
    }
