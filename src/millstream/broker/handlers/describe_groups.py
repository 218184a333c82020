"""DescribeGroups, v0-6: state and members of classic groups.

* v3: authorized operations (KIP-430)
* v4: group instance ids (KIP-345)
* v5: flexible
* v6: a group that is not there is GROUP_ID_NOT_FOUND (KIP-1043); before, it is Dead

Every group that was asked for is in the answer: librdkafka aborts its process otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import operations, require_group
from millstream.broker.services import RequestContext
from millstream.coordination.groups.classic_messages import GroupDescription
from millstream.coordination.groups.classic_state import ClassicState
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.metadata import OPERATIONS_NOT_ASKED
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest

    from millstream.protocol.messages import Fields

FIRST_WITH_NOT_FOUND = 6


async def describe_groups(context: RequestContext, request: DescribeGroupsRequest) -> Fields:
    answers = []
    for group_id in request.groups:
        description = await _describe(context, group_id)
        is_asked = request.include_authorized_operations and description.error is ErrorCode.NONE
        rights = group_operations(context, group_id, is_asked=is_asked)
        answers.append({**_encoded(description), "authorized_operations": rights})
    return {"groups": answers}


def group_operations(context: RequestContext, group_id: str, *, is_asked: bool) -> int:
    """The client's rights to a group, for the answers of the three APIs that describe groups."""
    if not is_asked:
        return OPERATIONS_NOT_ASKED
    return operations(context, ResourceType.GROUP, group_id)


async def _describe(context: RequestContext, group_id: str) -> GroupDescription:
    groups = context.services.coordinators.groups
    try:
        require_group(context, Operation.DESCRIBE, group_id)
        return await groups.read(group_id, lambda shard: shard.describe_group(group_id))
    except ApiError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE and groups.has_no_groups:
            code = ErrorCode.GROUP_ID_NOT_FOUND  # there are no groups yet
        if code is not ErrorCode.GROUP_ID_NOT_FOUND:
            return GroupDescription(group_id, code, error.message)
        dead = ClassicState.DEAD.value
        if context.api_version < FIRST_WITH_NOT_FOUND:
            return GroupDescription(group_id, state=dead)
        return GroupDescription(group_id, code, error.message, state=dead)


def _encoded(group: GroupDescription) -> dict[str, Any]:
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
