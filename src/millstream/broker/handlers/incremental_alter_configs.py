"""IncrementalAlterConfigs, v0-1: set, unset, and edit settings that are lists (KIP-339).

* v1: flexible

Each resource is changed as a whole or not at all. BROKER_LOGGER changes the levels of this
process's loggers, until it ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.handlers.alter_configs import answer
from millstream.broker.metadata.configs import Change
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import Resource
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    from millstream.protocol.messages import Fields


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Fields:
    counts = Counter((it.resource_type, it.resource_name) for it in request.resources)
    answers = []
    for wanted in request.resources:
        is_duplicate = counts[wanted.resource_type, wanted.resource_name] > 1
        try:
            changes = _changes(wanted, is_duplicate=is_duplicate)
            resource = Resource.of(wanted.resource_type, wanted.resource_name)
            await context.services.configs.alter(
                resource, changes, validate_only=request.validate_only
            )
            answers.append(answer(wanted.resource_type, wanted.resource_name))
        except ApiError as error:
            answers.append(answer(wanted.resource_type, wanted.resource_name, error))
    return {"responses": answers}


def _changes(wanted: AlterConfigsResource, *, is_duplicate: bool) -> list[Change]:
    if is_duplicate:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    changes = [Change(it.name, it.config_operation, it.value) for it in wanted.configs]
    if len({change.name for change in changes}) < len(changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return changes
