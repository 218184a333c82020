"""Access control entries of a cluster: list, add, remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from millstream.admin.errors import InvalidArgument, OperationFailed
from millstream.client.cluster import Cluster, check
from millstream.client.rights import RESOURCES
from millstream.errors import ErrorCode
from millstream.security.acls import (
    ANY_HOST,
    OPERATIONS_OF,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

ENTRIES_PER_REQUEST = 1_000  # brokers accept 10,000, less if their metadata is in ZooKeeper
NO_AUTHORIZER = (
    "the brokers have no authorizer, so everyone may do everything; set "
    "authorizer.class.name and super.users on them"
)


def create_entries(cluster: Cluster, entries: Sequence[AclEntry]) -> None:
    """Entries that exist already stay as they are. Raises `OperationFailed` or `ApiError`."""
    creations = [
        {
            "resource_type": entry.resource_type,
            "resource_name": entry.resource_name,
            "resource_pattern_type": entry.pattern_type,
            **entry.access_fields,
        }
        for entry in entries
    ]
    answer = _ask(cluster, "create_acls", {"creations": creations})
    for result in answer.results:
        _check(result, "adding", "create_acls")


def find_entries(cluster: Cluster, filters: Iterable[AclFilter]) -> list[AclEntry]:
    """Entries that match one of the filters, in the order of their principals."""
    found: dict[AclEntry, None] = {}
    for wanted in filters:
        answer = _ask(cluster, "describe_acls", _filter_fields(wanted))
        _check(answer, "listing", "describe_acls")
        found |= {
            AclEntry(
                *(resource.resource_type, resource.resource_name, resource.pattern_type),
                *(acl.principal, acl.host, acl.operation, acl.permission_type),
            ): None
            for resource in answer.resources
            for acl in resource.acls
        }
    return sorted(found, key=lambda it: (it.principal, it.resource_type, it.resource_name, it))


def delete_entries(cluster: Cluster, entries: Sequence[AclEntry]) -> None:
    for first in range(0, len(entries), ENTRIES_PER_REQUEST):
        some = entries[first : first + ENTRIES_PER_REQUEST]
        filters = [_filter_fields(AclFilter(*entry)) for entry in some]
        answer = _ask(cluster, "delete_acls", {"filters": filters})
        for result in answer.filter_results:
            _check(result, "removing", "delete_acls")


def principal_of(user: str) -> str:
    """A user's name is enough: there is no other type of principals."""
    if not user.strip():
        raise InvalidArgument("the name of the user is empty")
    return user if user.startswith("User:") else f"User:{user}"


def is_host(host: str) -> bool:
    """Whether an entry can have it: one address, or all. Others would match no client."""
    try:
        ip_address(host)
    except ValueError:
        return host == ANY_HOST
    return True


def parse_operation(name: str) -> Operation | None:
    """`describe-configs`, `DescribeConfigs` and `DESCRIBE_CONFIGS` are the same."""
    plain = name.replace("-", "").replace("_", "").upper()
    for operation in Operation:
        if operation >= Operation.ALL and operation.name.replace("_", "") == plain:
            return operation
    return None


def possible_operations(resource_type: ResourceType) -> tuple[Operation, ...]:
    return (Operation.ALL, *OPERATIONS_OF[resource_type])


def shown(number: ResourceType | Operation | PatternType | Permission) -> str:
    return number.name.lower().replace("_", "-")


def row_of(entry: AclEntry) -> dict[str, str]:
    """An entry in words."""
    return {
        "principal": entry.principal,
        "permission": _name(Permission, entry.permission),
        "operation": _name(Operation, entry.operation),
        "type": _name(ResourceType, entry.resource_type),
        "name": entry.resource_name,
        "pattern": _name(PatternType, entry.pattern_type),
        "host": entry.host,
    }


def _name(numbers: Any, number: int) -> str:
    """A later Kafka may have more of them."""
    return shown(numbers(number)) if number in numbers._value2member_map_ else str(number)


def _ask(cluster: Cluster, api: str, fields: Mapping[str, Any]) -> Any:
    return cluster.ask_broker(cluster.broker_ids()[0], api, fields)


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _check(result: Any, what: str, api: str) -> None:
    code, message = result.error_code, result.error_message
    if code is ErrorCode.NONE:
        return
    if code is ErrorCode.SECURITY_DISABLED:
        raise OperationFailed(NO_AUTHORIZER)
    text = f"{what} access control entries failed: {message or code.description}"
    if code in RESOURCES:
        check(code, text, api)
    raise OperationFailed(text)
