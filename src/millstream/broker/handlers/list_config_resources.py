"""ListConfigResources, v0-1: resources that have, or can have, settings (KIP-1142).

* v0: client metrics only
* v1: topics, brokers, groups, ...

Groups and client metrics are listed once something is set for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import Resource, ResourceType
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

    from millstream.protocol.messages import Fields

_KNOWN: frozenset[int] = frozenset(
    {
        ResourceType.TOPIC,
        ResourceType.BROKER,
        ResourceType.BROKER_LOGGER,
        ResourceType.CLIENT_METRICS,
        ResourceType.GROUP,
    }
)


def list_config_resources(context: RequestContext, request: ListConfigResourcesRequest) -> Fields:
    require_cluster(context, Operation.DESCRIBE_CONFIGS)
    wanted: frozenset[int] = frozenset(request.resource_types)
    if context.api_version == 0:
        wanted = frozenset({ResourceType.CLIENT_METRICS})
    elif not wanted <= _KNOWN:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"unknown resource types {sorted(wanted - _KNOWN)}; supported: {sorted(_KNOWN)}",
        )
    return {
        "error_code": ErrorCode.NONE,
        "config_resources": [
            {"resource_name": resource.name, "resource_type": resource.type}
            for resource in _resources(context)
            if not wanted or resource.type in wanted
        ],
    }


def _resources(context: RequestContext) -> Iterator[Resource]:
    image = context.services.metadata.image
    for name in image.topics:
        yield Resource(ResourceType.TOPIC, name)
    for broker_id in image.brokers:
        yield Resource(ResourceType.BROKER, str(broker_id))
        yield Resource(ResourceType.BROKER_LOGGER, str(broker_id))
    for resource in image.configs:
        if resource.type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            yield resource
