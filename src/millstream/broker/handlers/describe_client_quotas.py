"""DescribeClientQuotas, v0-1: the quotas that are set, for the entities that match a filter.

* v1: flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.quotas.limits import CLIENT_ID, IP, USER
from millstream.broker.quotas.requests import Component, QuotaFilter
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest

    from millstream.protocol.messages import Fields

_ORDER = {USER: 0, CLIENT_ID: 1, IP: 2}


async def describe_client_quotas(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> Fields:
    require_cluster(context, Operation.DESCRIBE_CONFIGS)
    image = await context.services.metadata.refresh()
    try:
        chosen = QuotaFilter(
            (Component(it.entity_type, it.match_type, it.match) for it in request.components),
            strict=request.strict,
        ).select(image.quotas)
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "entries": [
            {
                "entity": [
                    {"entity_type": entity_type, "entity_name": name}
                    for entity_type, name in sorted(entity, key=lambda part: _ORDER[part[0]])
                ],
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            for entity, values in chosen.items()
        ],
    }
