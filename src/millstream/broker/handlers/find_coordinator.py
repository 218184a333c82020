"""FindCoordinator, v0-6: the coordinator of a group, a transactional id or a share partition.

* v1: key types (0 group, 1 transaction), error message
* v3: flexible
* v4: several keys at once (KIP-699)
* v5: TRANSACTION_ABORTABLE (not used)
* v6: share partitions (key type 2, KIP-932)

The first request creates the internal topic and is answered when it exists; Kafka answers
COORDINATOR_NOT_AVAILABLE, and the client retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_cluster, require_group, require_transaction
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import CoordinatorKind
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.protocol.messages import Fields

FIRST_WITH_SEVERAL_KEYS = 4
FIRST_WITH_SHARE_KEYS = 6


async def find_coordinator(context: RequestContext, request: Any) -> Fields:
    kind = getattr(request, "key_type", CoordinatorKind.GROUP)
    if context.api_version < FIRST_WITH_SEVERAL_KEYS:
        return await _find(context, kind, request.key)
    keys = request.coordinator_keys
    return {"coordinators": [{"key": key, **await _find(context, kind, key)} for key in keys]}


async def _find(context: RequestContext, kind: int, key: str) -> dict[str, Any]:
    try:
        if kind == CoordinatorKind.GROUP:
            require_group(context, Operation.DESCRIBE, key)
        elif kind == CoordinatorKind.TRANSACTION:
            require_transaction(context, Operation.DESCRIBE, key)
        _validate(kind, key, context.api_version)
        if kind == CoordinatorKind.SHARE:
            require_cluster(context, Operation.CLUSTER_ACTION)
        broker = await context.services.coordinators.find(CoordinatorKind(kind), key)
        endpoint = broker.endpoint(context.listener)
        if endpoint is None:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"Broker {broker.id} has no listener {context.listener}.",
            )
    except ApiError as error:
        code, message = error.code, error.message
        nowhere = {"node_id": -1, "host": "", "port": -1}
        return {"error_code": code, "error_message": message, **nowhere}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "node_id": broker.id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _validate(kind: int, key: str, api_version: int) -> None:
    if kind not in set(CoordinatorKind):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {kind}.")
    if kind == CoordinatorKind.SHARE:
        if api_version < FIRST_WITH_SHARE_KEYS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "Share partitions need FindCoordinator v6 or later."
            )
        if len(key.rsplit(":", 2)) != 3:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{key!r} is not of the form group:topic id:partition."
            )
