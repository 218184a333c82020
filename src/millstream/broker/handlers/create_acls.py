"""CreateAcls, v1-3: create access control entries; each is valid or not, the valid ones together.

* v1: patterns (KIP-290)
* v2: flexible
* v3: user resources, for delegation tokens (KIP-373)

An entry that exists already is created without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._acl_requests import require_authorizer
from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.coordination.cluster_security import ACLS_PER_REQUEST_MAX
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import (
    CLUSTER_NAME,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest

    from millstream.protocol.messages import Fields


async def create_acls(context: RequestContext, request: CreateAclsRequest) -> Fields:
    outcomes: list[ApiError | None] = []
    entries: list[AclEntry] = []
    try:
        require_cluster(context, Operation.ALTER)
        require_authorizer(context)
        for creation in request.creations:
            try:
                entries.append(_entry(creation))
                outcomes.append(None)
            except ApiError as error:
                outcomes.append(error)
        if len(entries) > ACLS_PER_REQUEST_MAX:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{len(entries)} entries in one request: at most {ACLS_PER_REQUEST_MAX} are "
                "created at once",
            )
        await context.services.actions.create_acls(entries)
    except ApiError as error:
        outcomes = [error] * len(request.creations)
    return {"results": [_result(outcome) for outcome in outcomes]}


def _entry(creation: AclCreation) -> AclEntry:
    """The entry. Raises `ApiError` if nobody could mean it."""
    entry = AclEntry(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )
    if entry.resource_type == ResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not entry.resource_name:
        raise _invalid("Invalid empty resource name")
    if entry.resource_type not in range(ResourceType.TOPIC, ResourceType.USER + 1):
        raise _invalid(f"Invalid resourceType {_name(ResourceType, entry.resource_type)}")
    if entry.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {_name(PatternType, entry.pattern_type)}")
    if entry.operation not in range(Operation.ALL, Operation.TWO_PHASE_COMMIT + 1):
        raise _invalid(f"Invalid operation {_name(Operation, entry.operation)}")
    if entry.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {_name(Permission, entry.permission)}")
    if ":" not in entry.principal:
        raise _invalid(
            f"Could not parse principal from `{entry.principal}` (no colon is present separating "
            "the principal type from the principal name)"
        )
    return entry


def _name(numbers: Any, number: int) -> str:
    return numbers(number).name if number in numbers._value2member_map_ else "UNKNOWN"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _result(error: ApiError | None) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or error.code.description,
    }
