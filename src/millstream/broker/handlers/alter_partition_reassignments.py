"""AlterPartitionReassignments, v0-1: move replicas, or cancel that (KIP-455).

* v1: `allow_replication_factor_change` (KIP-860)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.services import RequestContext
from millstream.coordination.replication.reassignment import Target
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest,
    )

    from millstream.partitions import TopicPartition
    from millstream.protocol.messages import Fields


async def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Fields:
    targets = [
        Target(topic.name, partition.partition_index, partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    may_change_factor = request.allow_replication_factor_change
    code = ErrorCode.NONE
    outcomes: dict[TopicPartition, ApiError | None]
    if may_cluster(context, Operation.ALTER):
        outcomes = await context.services.actions.reassign_partitions(
            targets, may_change_factor=may_change_factor
        )
    else:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        outcomes = dict.fromkeys(((it.topic, it.partition_id) for it in targets), ApiError(code))
    return {
        "error_code": code,
        "allow_replication_factor_change": may_change_factor,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _answer(it.partition_index, outcomes[topic.name, it.partition_index])
                    for it in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _answer(index: int, error: ApiError | None) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or error.code.description,
    }
