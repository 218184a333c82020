"""Shared by all handlers: what the client of a request may do.

Without an authorizer (`context.client.rights` is None) everyone may do everything. What each API
needs is listed in `broker/security/needs.py`.

A client must not learn from a refusal whether something exists: the right is checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from millstream.coordination.cluster import Resource
from millstream.coordination.cluster import ResourceType as ConfigResourceType
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.broker.services import RequestContext

Item = TypeVar("Item")

DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"

_ALL_OPERATIONS = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in OPERATIONS_OF.items()
}
_REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def may(
    context: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    log_denied: bool = True,
) -> bool:
    """Whether the client may do this."""
    rights = context.client.rights
    return rights is None or rights.allows(operation, resource_type, name, log_denied=log_denied)


def may_cluster(context: RequestContext, operation: Operation, *, log_denied: bool = True) -> bool:
    return may(context, operation, ResourceType.CLUSTER, CLUSTER_NAME, log_denied=log_denied)


def may_topic(
    context: RequestContext, operation: Operation, name: str, *, log_denied: bool = True
) -> bool:
    return may(context, operation, ResourceType.TOPIC, name, log_denied=log_denied)


def require(
    context: RequestContext, operation: Operation, resource_type: ResourceType, name: str
) -> None:
    """Raise the `ApiError` of the resource's type unless the client may do this."""
    if not may(context, operation, resource_type, name):
        raise ApiError(_REFUSALS[resource_type])


def require_cluster(context: RequestContext, operation: Operation) -> None:
    require(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def require_group(context: RequestContext, operation: Operation, group_id: str) -> None:
    require(context, operation, ResourceType.GROUP, group_id)


def require_topic(context: RequestContext, operation: Operation, topic: str | UUID) -> None:
    """By name or by id. An unknown id is not refused: it is to be answered as unknown."""
    if context.client.rights is None:
        return
    if not isinstance(topic, str):
        known = context.services.metadata.image.topics_by_id.get(topic)
        if known is None:
            return
        topic = known.name
    require(context, operation, ResourceType.TOPIC, topic)


def require_topics(context: RequestContext, operation: Operation, names: Iterable[str]) -> None:
    """All of them: each refusal is in the audit."""
    refused = [name for name in names if not may_topic(context, operation, name)]
    if refused:
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def require_visible(context: RequestContext, topic_ids: Iterable[UUID]) -> None:
    """Raise unless the client may describe all topics that the members of a group have: otherwise
    it gets nothing of the group."""
    topics = context.services.metadata.image.topics_by_id
    names = [topics[topic_id].name for topic_id in topic_ids if topic_id in topics]
    if split_topics(context, Operation.DESCRIBE, names, lambda name: name)[1]:
        raise ApiError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )


def require_config_right(context: RequestContext, operation: Operation, resource: Resource) -> None:
    """To describe or alter settings. Those of brokers and of client metrics are the cluster's."""
    if resource.type is ConfigResourceType.TOPIC:
        require_topic(context, operation, resource.name)
    elif resource.type is ConfigResourceType.GROUP:
        require_group(context, operation, resource.name)
    else:
        require_cluster(context, operation)


def require_dead_letter_right(
    context: RequestContext, settings: Iterable[tuple[str, str | None]]
) -> None:
    """The broker itself writes the dead letters of a share group. So a client that chooses their
    topic must be allowed to write to it."""
    for name, topic in settings:
        if name == DEAD_LETTER_TOPIC and topic:
            require_topic(context, Operation.WRITE, topic)


def require_transaction(context: RequestContext, operation: Operation, name: str) -> None:
    require(context, operation, ResourceType.TRANSACTIONAL_ID, name)


def split_topics(
    context: RequestContext,
    operation: Operation,
    items: Iterable[Item],
    name_of: Callable[[Item], str],
    *,
    log_denied: bool = True,
) -> tuple[list[Item], list[Item]]:
    """The items of a request whose topics the client may use like this, and the others."""
    if context.client.rights is None:
        return list(items), []
    allowed: list[Item] = []
    refused: list[Item] = []
    for item in items:
        is_allowed = may_topic(context, operation, name_of(item), log_denied=log_denied)
        (allowed if is_allowed else refused).append(item)
    return allowed, refused


def operations(context: RequestContext, resource_type: ResourceType, name: str) -> int:
    """The operations that the client may do, as a bit field."""
    rights = context.client.rights
    if rights is None:
        return _ALL_OPERATIONS[resource_type]
    return rights.operations(resource_type, name)


def cluster_operations(context: RequestContext) -> int:
    """The same for the cluster: nothing for a client that may not describe it."""
    if not may_cluster(context, Operation.DESCRIBE):
        return 0
    return operations(context, ResourceType.CLUSTER, CLUSTER_NAME)
