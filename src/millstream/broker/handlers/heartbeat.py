"""Heartbeat, v0-4: a member of a classic group is alive; REBALANCE_IN_PROGRESS: it must rejoin.

* v3: group instance ids (KIP-345)
* v4: flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_group
from millstream.broker.services import RequestContext
from millstream.coordination.groups import classic_messages
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest

    from millstream.protocol.messages import Fields


async def heartbeat(context: RequestContext, request: HeartbeatRequest) -> Fields:
    beat = classic_messages.HeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    groups = context.services.coordinators.groups
    try:
        require_group(context, Operation.READ, beat.group_id)
        code = await groups.run(beat.group_id, lambda shard, now_ms: shard.heartbeat(beat, now_ms))
    except ApiError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            code = ErrorCode.NONE  # as Kafka does: its session restarts when the group is loaded
    return {"error_code": code}
