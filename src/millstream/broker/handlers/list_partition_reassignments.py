"""ListPartitionReassignments, v0: reassignments in progress (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import (
        ListPartitionReassignmentsRequest,
    )

    from millstream.coordination.cluster import TopicImage
    from millstream.protocol.messages import Fields


def list_partition_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Fields:
    require_cluster(context, Operation.DESCRIBE)
    topics = context.services.metadata.image.topics
    if request.topics is None:
        wanted = {name: range(len(topic.partitions)) for name, topic in topics.items()}
        answers = [_moving(topics[name], indexes) for name, indexes in wanted.items()]
    else:
        answers = [
            _moving(topics[wanted.name], wanted.partition_indexes)
            for wanted in request.topics
            if wanted.name in topics
        ]
    return {
        "error_code": ErrorCode.NONE,
        "topics": [answer for answer in answers if answer["partitions"]],
    }


def _moving(topic: TopicImage, indexes: range | tuple[int, ...]) -> dict[str, Any]:
    partitions = []
    for index in indexes:
        if not 0 <= index < len(topic.partitions):
            continue
        partition = topic.partitions[index]
        if partition.adding_replicas or partition.removing_replicas:
            partitions.append(
                {
                    "partition_index": index,
                    "replicas": partition.replicas,
                    "adding_replicas": partition.adding_replicas,
                    "removing_replicas": partition.removing_replicas,
                }
            )
    return {"name": topic.name, "partitions": partitions}
