"""SyncGroup, v0-5: a member gets its assignment; the leader sends all assignments.

* v3: group instance ids (KIP-345)
* v4: flexible
* v5: protocol type and name, checked against the group's (KIP-559)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_group
from millstream.broker.services import RequestContext
from millstream.coordination.groups.classic_messages import SyncRequest, SyncResponse
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest

    from millstream.protocol.messages import Fields

FIRST_WITH_PROTOCOL = 5


async def sync_group(context: RequestContext, request: SyncGroupRequest) -> Fields:
    sync = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple(
            (assignment.member_id, assignment.assignment) for assignment in request.assignments
        ),
    )
    groups = context.services.coordinators.groups
    try:
        if context.api_version >= FIRST_WITH_PROTOCOL:
            _require_protocol(sync)
        require_group(context, Operation.READ, sync.group_id)
        response: SyncResponse = await groups.run_waiting(
            sync.group_id, lambda shard, token, now_ms: shard.sync_group(sync, token, now_ms)
        )
    except ApiError as error:
        response = SyncResponse(error.code)
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name,
        "assignment": response.assignment,
    }


def _require_protocol(sync: SyncRequest) -> None:
    if sync.protocol_type is None or sync.protocol_name is None:
        raise ApiError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "SyncGroup v5 and later must contain the protocol type and name.",
        )
