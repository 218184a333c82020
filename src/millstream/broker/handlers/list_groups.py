"""ListGroups, v0-5: the groups that this broker coordinates.

* v3: flexible
* v4: states, and a filter by state (KIP-518)
* v5: types, and a filter by type (KIP-848)

Filters do not mind upper and lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import may, may_cluster
from millstream.broker.services import RequestContext
from millstream.coordination.groups.group import GroupOverview
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest

    from millstream.protocol.messages import Fields


async def list_groups(context: RequestContext, request: ListGroupsRequest) -> Fields:
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}

    def is_wanted(group: GroupOverview) -> bool:
        state_fits = not states or group.state.lower() in states
        return state_fits and (not types or group.kind.value in types)

    try:
        by_shard = await context.services.coordinators.groups.read_all(
            lambda shard: shard.list_groups()
        )
    except ApiError as error:
        return {"error_code": error.code, "groups": []}
    sees_all = may_cluster(context, Operation.DESCRIBE, log_denied=False)
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.kind.value,
            }
            for groups in by_shard
            for group in groups
            if is_wanted(group) and (sees_all or _may_describe(context, group.group_id))
        ],
    }


def _may_describe(context: RequestContext, group_id: str) -> bool:
    return may(context, Operation.DESCRIBE, ResourceType.GROUP, group_id, log_denied=False)
