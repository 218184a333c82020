"""AlterConfigs, v0-2: the older way, which replaces all that a resource has set.

* v2: flexible

What the request does not name goes back to its default; IncrementalAlterConfigs is kinder.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from millstream.broker.services import RequestContext
from millstream.coordination.cluster import Resource
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource

    from millstream.protocol.messages import Fields


async def alter_configs(context: RequestContext, request: AlterConfigsRequest) -> Fields:
    counts = Counter((it.resource_type, it.resource_name) for it in request.resources)
    answers = []
    for wanted in request.resources:
        is_duplicate = counts[wanted.resource_type, wanted.resource_name] > 1
        try:
            settings = _settings(wanted, is_duplicate=is_duplicate)
            resource = Resource.of(wanted.resource_type, wanted.resource_name)
            await context.services.configs.replace(
                resource, settings, validate_only=request.validate_only
            )
            answers.append(answer(wanted.resource_type, wanted.resource_name))
        except ApiError as error:
            answers.append(answer(wanted.resource_type, wanted.resource_name, error))
    return {"responses": answers}


def _settings(wanted: AlterConfigsResource, *, is_duplicate: bool) -> dict[str, str]:
    if is_duplicate:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    settings = {it.name: it.value for it in wanted.configs if it.value is not None}
    if len(settings) < len(wanted.configs):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys or null values: give each setting once, with a "
            "value",
        )
    return settings


def answer(resource_type: int, name: str, error: ApiError | None = None) -> dict[str, Any]:
    """What became of one resource; IncrementalAlterConfigs answers alike."""
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or error.code.description,
        "resource_type": resource_type,
        "resource_name": name,
    }
