"""Shared by the APIs of access control lists (29 to 31)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import (
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from millstream.broker.services import RequestContext


def require_authorizer(context: RequestContext) -> None:
    if context.services.authorizer is None:
        raise ApiError(
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured on the broker: set authorizer.class.name",
        )


def filter_of(wanted: Any) -> AclFilter:
    """The filter of a request. Raises `ApiError` for a number that is not known."""
    found = AclFilter(
        resource_type=wanted.resource_type_filter,
        resource_name=wanted.resource_name_filter,
        pattern_type=wanted.pattern_type_filter,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=wanted.operation,
        permission=wanted.permission_type,
    )
    unknown = [
        name
        for name, number, numbers in (
            ("resource type", found.resource_type, ResourceType),
            ("pattern type", found.pattern_type, PatternType),
            ("operation", found.operation, Operation),
            ("permission type", found.permission, Permission),
        )
        if number not in numbers._value2member_map_ or not number
    ]
    if unknown:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"The filter has an unknown {' and '.join(unknown)}."
        )
    return found


def resource_fields(entry: AclEntry) -> dict[str, Any]:
    return {
        "resource_type": entry.resource_type,
        "resource_name": entry.resource_name,
        "pattern_type": entry.pattern_type,
    }
