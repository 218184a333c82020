"""AlterReplicaLogDirs, v1-2: move replicas to other log directories of this broker (KIP-113).

* v2: flexible

An answer without error means that the move has begun. DescribeLogDirs shows how far it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest

    from millstream.protocol.messages import Fields


async def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Fields:
    results: dict[str, list[dict[str, object]]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                error = await _move(context, topic.name, index, directory.path)
                results.setdefault(topic.name, []).append(
                    {"partition_index": index, "error_code": error}
                )
    return {
        "results": [
            {"topic_name": topic, "partitions": partitions} for topic, partitions in results.items()
        ]
    }


async def _move(context: RequestContext, topic: str, index: int, path: str) -> ErrorCode:
    if not may_cluster(context, Operation.ALTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    try:
        await context.services.log_moves.move(topic, index, path)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
