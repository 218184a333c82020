"""IncrementalAlterConfigs, v0-1: set, unset, and edit settings that are lists (KIP-339).

* v1: flexible

All resources are committed together; each is changed as a whole or not at all. BROKER_LOGGER
changes the levels of this process's loggers, until it ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_config_right, require_dead_letter_right
from millstream.broker.handlers.alter_configs import answer
from millstream.broker.metadata.configs import Change
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import Resource
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    from millstream.protocol.messages import Fields


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Fields:
    counts = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
    wanted: dict[Resource, list[Change]] = {}
    refused: dict[Resource, ApiError] = {}
    for asked in request.resources:
        resource = Resource.of(asked.resource_type, asked.resource_name)
        is_duplicate = counts[asked.resource_type, asked.resource_name] > 1
        try:
            changes = _changes(asked, is_duplicate=is_duplicate)
            require_config_right(context, Operation.ALTER_CONFIGS, resource)
            require_dead_letter_right(context, ((it.name, it.value) for it in changes))
            wanted[resource] = changes
        except ApiError as error:
            refused[resource] = error
    outcomes = refused | await context.services.actions.alter_configs(
        wanted, validate_only=request.validate_only
    )
    if context.services.audit is not None:
        context.services.audit.look_at_levels()
    return {"responses": [answer(asked, outcomes) for asked in request.resources]}


def _changes(wanted: AlterConfigsResource, *, is_duplicate: bool) -> list[Change]:
    if is_duplicate:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    changes = [
        Change(config.name, config.config_operation, config.value) for config in wanted.configs
    ]
    if len({change.name for change in changes}) < len(changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return changes
