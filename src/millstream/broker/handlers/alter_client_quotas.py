"""AlterClientQuotas, v0-1: set quotas, or remove them; each entity succeeds or fails individually.

* v1: flexible

The quotas of all entities that succeed are committed at once, and apply before the answer is sent.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.metadata.outcomes import failures
from millstream.broker.quotas.requests import check_entity, check_values
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntryData

    from millstream.coordination.cluster_security import QuotaEntity
    from millstream.protocol.messages import Fields


async def alter_client_quotas(context: RequestContext, request: AlterClientQuotasRequest) -> Fields:
    if not may_cluster(context, Operation.ALTER_CONFIGS):
        unauthorized = ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
        )
        return {"entries": [_answer(entry, unauthorized) for entry in request.entries]}
    changes: dict[QuotaEntity, dict[str, float | None]] = {}
    outcomes: list[ApiError | None] = []
    counts = Counter(map(_parts, request.entries))
    for entry in request.entries:
        error: ApiError | None = None
        try:
            if counts[_parts(entry)] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Ignoring duplicate entity")
            entity = check_entity(_parts(entry))
            operations = [(op.key, None if op.remove else op.value) for op in entry.ops]
            changes[entity] = check_values(entity, operations)
        except ApiError as refusal:
            error = refusal
        outcomes.append(error)
    if changes and not request.validate_only:
        failed = await failures([None], context.services.actions.alter_quotas(changes))
        outcomes = [error or failed.get(None) for error in outcomes]
    return {"entries": [_answer(*it) for it in zip(request.entries, outcomes, strict=True)]}


def _parts(entry: EntryData) -> tuple[tuple[str, str | None], ...]:
    return tuple((part.entity_type, part.entity_name) for part in entry.entity)


def _answer(entry: EntryData, error: ApiError | None) -> Fields:
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message,
        "entity": [
            {"entity_type": entity_type, "entity_name": name} for entity_type, name in _parts(entry)
        ],
    }
