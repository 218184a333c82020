"""ShareGroupHeartbeat, v1: join, stay in and leave a share group (KIP-932).

A member chooses its id, joins with epoch 0, stays, and leaves with epoch -1. The answer to a
heartbeat that brings new partitions into the group comes once they can be given to members.

Not done: the rack of a member is kept and shown, but the assignor does not look at it (nor does
Kafka's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_group, require_topics
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import require_share_groups
from millstream.coordination.groups.share_messages import ShareHeartbeat, ShareHeartbeatResponse
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest

    from millstream.protocol.messages import Fields


async def share_group_heartbeat(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Fields:
    beat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        topic_names=request.subscribed_topic_names,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
    )
    try:
        require_share_groups(context.services.metadata.image)
        require_group(context, Operation.READ, beat.group_id)
        require_topics(context, Operation.DESCRIBE, beat.topic_names or ())
        response = await context.services.coordinators.share_groups.heartbeat(beat)
    except ApiError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or error.code.description,
        }
    return _encoded(response)


def _encoded(response: ShareHeartbeatResponse) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": None
        if response.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": sorted(partitions)}
                for topic_id, partitions in sorted(response.assignment.items())
            ]
        },
    }
