"""JoinGroup, v0-9: join or rejoin a classic group; answered when all members have joined.

* v1: a rebalance timeout, separate from the session timeout
* v4: a new dynamic member first gets its id (KIP-394)
* v5: group instance ids, so static members (KIP-345)
* v6: flexible
* v7: protocol type in the answer (KIP-559)
* v8: the client's reason (KIP-800), which is logged
* v9: skip_assignment (KIP-814)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_group
from millstream.broker.services import RequestContext
from millstream.coordination.group_records import ClassicProtocol
from millstream.coordination.groups.classic_messages import JoinRequest, JoinResponse
from millstream.errors import ApiError
from millstream.protocol.messages import milliseconds
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest

    from millstream.protocol.messages import Fields

FIRST_WITH_REBALANCE_TIMEOUT = 1
FIRST_WITH_NULL_PROTOCOL = 7


async def join_group(context: RequestContext, request: JoinGroupRequest) -> Fields:
    join = _decoded(context, request)
    groups = context.services.coordinators.groups
    try:
        require_group(context, Operation.READ, join.group_id)
        response: JoinResponse = await groups.run_waiting(
            join.group_id, lambda shard, token, now_ms: shard.join_group(join, token, now_ms)
        )
    except ApiError as error:
        response = JoinResponse(error.code, join.member_id)
    return _encoded(response, context.api_version)


def _decoded(context: RequestContext, request: JoinGroupRequest) -> JoinRequest:
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    if context.api_version < FIRST_WITH_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = session_timeout_ms
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        protocol_type=request.protocol_type,
        protocols=tuple(
            ClassicProtocol(protocol.name, protocol.metadata) for protocol in request.protocols
        ),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        api_version=context.api_version,
        reason=request.reason,
    )


def _encoded(response: JoinResponse, version: int) -> Fields:
    protocol_name = response.protocol_name
    if protocol_name is None and version < FIRST_WITH_NULL_PROTOCOL:
        protocol_name = ""
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": protocol_name,
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in response.members
        ],
    }
