"""DeleteAcls, v1-3: delete the access control entries that filters match, all of them at once.

* v1: patterns (KIP-290)
* v2: flexible
* v3: user resources, for delegation tokens (KIP-373)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._acl_requests import (
    filter_of,
    require_authorizer,
    resource_fields,
)
from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import AclEntry, AclFilter, Operation

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest

    from millstream.protocol.messages import Fields


async def delete_acls(context: RequestContext, request: DeleteAclsRequest) -> Fields:
    outcomes: list[list[AclEntry] | ApiError]
    try:
        require_cluster(context, Operation.ALTER)
        require_authorizer(context)
        filters: list[AclFilter | ApiError] = []
        for wanted in request.filters:
            try:
                filters.append(filter_of(wanted))
            except ApiError as error:
                filters.append(error)
        valid = [it for it in filters if isinstance(it, AclFilter)]
        deleted = iter(await context.services.actions.delete_acls(valid))
        outcomes = [it if isinstance(it, ApiError) else next(deleted) for it in filters]
    except ApiError as error:
        outcomes = [error] * len(request.filters)
    return {"filter_results": [_result(outcome) for outcome in outcomes]}


def _result(outcome: list[AclEntry] | ApiError) -> dict[str, Any]:
    if isinstance(outcome, ApiError):
        return {
            "error_code": outcome.code,
            "error_message": outcome.message or outcome.code.description,
            "matching_acls": (),
        }
    return {
        "error_code": ErrorCode.NONE,
        "matching_acls": [
            {"error_code": ErrorCode.NONE, **resource_fields(entry), **entry.access_fields}
            for entry in outcome
        ],
    }
