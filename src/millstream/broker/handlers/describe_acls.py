"""DescribeAcls, v1-3: the access control entries that a filter matches, by resource.

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
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    from millstream.protocol.messages import Fields


def describe_acls(context: RequestContext, request: DescribeAclsRequest) -> Fields:
    require_cluster(context, Operation.DESCRIBE)
    require_authorizer(context)
    wanted = filter_of(request)
    resources: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in context.services.metadata.image.acls.values():
        if wanted.matches(entry):
            key = entry[:3]
            if key not in resources:
                resources[key] = {**resource_fields(entry), "acls": []}
            resources[key]["acls"].append(entry.access_fields)
    return {"error_code": ErrorCode.NONE, "resources": list(resources.values())}
