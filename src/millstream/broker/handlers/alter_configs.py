"""AlterConfigs, v0-2: the older request, which replaces all settings of a resource.

* v2: flexible

Settings that the request does not name go back to their defaults. All resources are committed
together; each is changed as a whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_config_right, require_dead_letter_right
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import Resource
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterConfigsResource as IncrementalAlterConfigsResource,
    )

    from millstream.protocol.messages import Fields


async def alter_configs(context: RequestContext, request: AlterConfigsRequest) -> Fields:
    counts = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
    wanted: dict[Resource, dict[str, str]] = {}
    refused: dict[Resource, ApiError] = {}
    for asked in request.resources:
        resource = Resource.of(asked.resource_type, asked.resource_name)
        is_duplicate = counts[asked.resource_type, asked.resource_name] > 1
        try:
            settings = _settings(asked, is_duplicate=is_duplicate)
            require_config_right(context, Operation.ALTER_CONFIGS, resource)
            require_dead_letter_right(context, settings.items())
            wanted[resource] = settings
        except ApiError as error:
            refused[resource] = error
    outcomes = refused | await context.services.actions.replace_configs(
        wanted, validate_only=request.validate_only
    )
    return {"responses": [answer(asked, outcomes) for asked in request.resources]}


def _settings(wanted: AlterConfigsResource, *, is_duplicate: bool) -> dict[str, str]:
    if is_duplicate:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    settings = {config.name: config.value for config in wanted.configs if config.value is not None}
    if len(settings) < len(wanted.configs):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys or null values: give each setting once, with a "
            "value",
        )
    return settings


def answer(
    wanted: AlterConfigsResource | IncrementalAlterConfigsResource,
    outcomes: Mapping[Resource, ApiError | None],
) -> dict[str, Any]:
    """The outcome for one resource; IncrementalAlterConfigs answers alike."""
    error = outcomes[Resource.of(wanted.resource_type, wanted.resource_name)]
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or error.code.description,
        "resource_type": wanted.resource_type,
        "resource_name": wanted.resource_name,
    }
