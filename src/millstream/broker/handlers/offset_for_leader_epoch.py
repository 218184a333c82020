"""OffsetForLeaderEpoch, v2-4: where a leader epoch ended, for clients that check for truncation.

* v2: the client's leader epoch is checked
* v3: replica id (not used: there are no followers yet)
* v4: flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may_cluster, require_topic
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
    )

    from millstream.protocol.messages import Fields


def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Fields:
    is_broker = may_cluster(context, Operation.CLUSTER_ACTION, log_denied=False)
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _end(context, topic.topic, wanted, is_broker) for wanted in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _end(
    context: RequestContext, topic: str, wanted: OffsetForLeaderPartition, is_broker: bool
) -> dict[str, Any]:
    try:
        if not is_broker:
            require_topic(context, Operation.DESCRIBE, topic)
        partition = context.services.partitions.find(topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        epoch, end_offset = partition.end_of_epoch(wanted.leader_epoch)
    except ApiError as error:
        return {"partition": wanted.partition, "error_code": error.code}
    return {
        "error_code": ErrorCode.NONE,
        "partition": wanted.partition,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }
