"""LeaveGroup, v0-5: members leave a classic group, or an administrator removes them.

* v3: several members at once, by id or by instance id (KIP-345)
* v4: flexible
* v5: the client's reason (KIP-800); it goes into the log
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_group
from millstream.broker.services import RequestContext
from millstream.coordination.groups.classic_messages import LeaveRequest, LeavingMember, LeftMember
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.protocol.messages import Fields

FIRST_WITH_SEVERAL_MEMBERS = 3


async def leave_group(context: RequestContext, request: Any) -> Fields:
    leave = LeaveRequest(request.group_id, _leaving(context.api_version, request))
    groups = context.services.coordinators.groups
    try:
        require_group(context, Operation.READ, leave.group_id)
        left = await groups.run(
            leave.group_id, lambda shard, now_ms: shard.leave_group(leave, now_ms)
        )
    except ApiError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            return {"error_code": error.code, "members": []}
        # There is no such group: each of them is unknown.
        left = tuple(
            LeftMember(leaving.member_id, leaving.group_instance_id, error.code)
            for leaving in leave.members
        )
    if context.api_version < FIRST_WITH_SEVERAL_MEMBERS:
        return {"error_code": left[0].error}
    return {
        "error_code": ErrorCode.NONE,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": member.error,
            }
            for member in left
        ],
    }


def _leaving(version: int, request: Any) -> tuple[LeavingMember, ...]:
    if version < FIRST_WITH_SEVERAL_MEMBERS:
        return (LeavingMember(request.member_id, None),)
    return tuple(
        LeavingMember(member.member_id, member.group_instance_id, getattr(member, "reason", None))
        for member in request.members
    )
