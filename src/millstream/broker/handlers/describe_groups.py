"""DescribeGroups, v0-6: state and members of classic groups.

* v3: authorized operations (KIP-430)
* v4: group instance ids (KIP-345)
* v5: flexible
* v6: a group that is not there is GROUP_ID_NOT_FOUND (KIP-1043); before, it is Dead

Every group that was asked for is in the answer: librdkafka aborts its process otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.services import RequestContext
from millstream.coordination.groups.classic_messages import GroupDescription
from millstream.coordination.groups.classic_state import ClassicState
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest

    from millstream.protocol.messages import Fields

FIRST_WITH_NOT_FOUND = 6

# Without an authorizer everyone may do everything: bits of READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS
# and ALTER_CONFIGS.
ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
OPERATIONS_NOT_ASKED = -2_147_483_648


async def describe_groups(context: RequestContext, request: DescribeGroupsRequest) -> Fields:
    asked = request.include_authorized_operations
    answers = []
    for group_id in request.groups:
        description = await _describe(context, group_id)
        show_operations = asked and description.error is ErrorCode.NONE
        operations = ALL_GROUP_OPERATIONS if show_operations else OPERATIONS_NOT_ASKED
        answers.append({**_encoded(description), "authorized_operations": operations})
    return {"groups": answers}


async def _describe(context: RequestContext, group_id: str) -> GroupDescription:
    groups = context.services.coordinators.groups
    try:
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
