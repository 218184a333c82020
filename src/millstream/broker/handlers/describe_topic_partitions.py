"""DescribeTopicPartitions, v0: topics and their partitions, a page at a time (KIP-966).

Topics come in the order of their names; the cursor says with which topic and partition the next
page begins. Eligible leader replicas are not kept, so that there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import operations, split_topics
from millstream.broker.handlers.metadata import describe_partition
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest

    from millstream.coordination.cluster import TopicImage
    from millstream.protocol.messages import Fields


def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Fields:
    topics = context.services.metadata.image.topics
    named = {topic.name for topic in request.topics}
    visible, refused = split_topics(
        context, Operation.DESCRIBE, named or topics, str, log_denied=bool(named)
    )
    hidden = set(refused)
    names = sorted(named or visible)
    first_partition = 0
    if request.cursor is not None:
        if request.cursor.partition_index < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first_partition = request.cursor.partition_index
    limit = min(
        context.services.config.max_request_partition_size_limit,
        max(request.response_partition_limit, 1),
    )
    answers: list[dict[str, Any]] = []
    next_cursor = None
    for name in names:
        if limit <= 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = topics.get(name)
        if name in hidden:
            answers.append(_without_partitions(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        if topic is None:
            unknown = _without_partitions(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            rights = operations(context, ResourceType.TOPIC, name)
            answers.append(unknown | {"topic_authorized_operations": rights})
            continue
        last_partition = min(first_partition + limit, len(topic.partitions))
        answers.append(_describe(context, topic, first_partition, last_partition))
        limit -= last_partition - first_partition
        if last_partition < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": last_partition}
            break
        first_partition = 0
    return {"topics": answers, "next_cursor": next_cursor}


def _without_partitions(name: str, error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": None}


def _describe(context: RequestContext, topic: TopicImage, first: int, last: int) -> dict[str, Any]:
    partitions = []
    for index in range(first, last):
        entry = describe_partition(context, topic, index)
        partitions.append(
            {
                "error_code": entry.error,
                "partition_index": index,
                "leader_id": entry.leader_id,
                "leader_epoch": entry.leader_epoch,
                "replica_nodes": entry.replicas,
                "isr_nodes": entry.in_sync,
                "eligible_leader_replicas": (),
                "last_known_elr": (),
                "offline_replicas": entry.offline,
            }
        )
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
        "topic_authorized_operations": operations(context, ResourceType.TOPIC, topic.name),
    }
