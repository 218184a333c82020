"""DescribeConfigs, v1-4: settings and their sources.

* v1: sources and synonyms
* v3: types and documentation (KIP-569)
* v4: flexible

Resources: TOPIC, BROKER (by id, or "" for what is set for all), GROUP, BROKER_LOGGER, and
CLIENT_METRICS. A value that is sensitive is not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_config_right
from millstream.broker.metadata.configs import DescribedSetting
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import Resource
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )

    from millstream.protocol.messages import Fields


def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> Fields:
    return {"results": [_describe(context, request, resource) for resource in request.resources]}


def _describe(
    context: RequestContext, request: DescribeConfigsRequest, wanted: DescribeConfigsResource
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "resource_type": wanted.resource_type,
        "resource_name": wanted.resource_name,
        "error_code": ErrorCode.NONE,
        "configs": (),
    }
    try:
        resource = Resource.of(wanted.resource_type, wanted.resource_name)
        require_config_right(context, Operation.DESCRIBE_CONFIGS, resource)
        settings = context.services.configs.describe(resource, wanted.configuration_keys)
    except ApiError as error:
        return answer | {"error_code": error.code, "error_message": error.message}
    return answer | {"configs": [_entry(request, setting) for setting in settings]}


def _entry(request: DescribeConfigsRequest, described: DescribedSetting) -> dict[str, Any]:
    setting = described.setting
    synonyms = described.synonyms if request.include_synonyms else ()
    return {
        "name": setting.name,
        "value": None if setting.sensitive else described.value,
        "read_only": described.read_only,
        "config_source": described.source,
        "is_sensitive": setting.sensitive,
        "synonyms": [
            {
                "name": synonym.name,
                "value": None if setting.sensitive else synonym.value,
                "source": synonym.source,
            }
            for synonym in synonyms
        ],
        "config_type": setting.kind,
        "documentation": setting.doc if request.include_documentation else None,
    }
