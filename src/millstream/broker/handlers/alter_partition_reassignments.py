"""AlterPartitionReassignments, v0-1: move replicas, or cancel that (KIP-455).

* v1: `allow_replication_factor_change` (KIP-860)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.services import RequestContext
from millstream.coordination.replication.reassignment import Target
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest,
    )

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
    outcomes = await context.services.actions.reassign_partitions(
        targets, may_change_factor=may_change_factor
    )
    return {
        "error_code": ErrorCode.NONE,
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
