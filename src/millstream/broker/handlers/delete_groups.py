"""DeleteGroups, v0-2: delete groups without members, with their offsets.

* v2: flexible

Every group that was asked for is in the answer: librdkafka aborts its process otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_group
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

    from millstream.protocol.messages import Fields


async def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> Fields:
    wanted = dict.fromkeys(request.groups_names)
    return {
        "results": [
            {"group_id": group_id, "error_code": await _delete(context, group_id)}
            for group_id in wanted
        ]
    }


async def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    services = context.services
    try:
        require_group(context, Operation.DELETE, group_id)
        await services.coordinators.share_groups.delete_group(
            group_id, services.share_partitions.forget
        )
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
