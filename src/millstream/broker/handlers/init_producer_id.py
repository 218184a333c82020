"""InitProducerId, v0-5: a producer id, for an idempotent producer or a transactional one.

* v2: flexible
* v3: a transactional producer may send its id and epoch to get the next epoch (KIP-360); without
  a transactional id every request is answered with a new id
* v4: PRODUCER_FENCED, which before was INVALID_PRODUCER_EPOCH
* v5: for transactions of version 2

An open transaction of an earlier producer is aborted first. Kafka answers
CONCURRENT_TRANSACTIONS meanwhile; here the request waits for it, if it does not take long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.error_codes import translate
from millstream.broker.handlers._rights import may, may_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.messages import milliseconds
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    from millstream.protocol.messages import Fields

NONE = -1  # of ids and epochs


async def init_producer_id(context: RequestContext, request: InitProducerIdRequest) -> Fields:
    refusal = _refusal(context, request.transactional_id)
    if refusal is not None:
        return _refused(refusal)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await _initialize(context, request)
    return _answer(await context.services.producer_ids.next(), 0)


def _refusal(context: RequestContext, transactional_id: str | None) -> ErrorCode | None:
    """Without a transactional id, who may write to any topic at all may have a producer id."""
    rights = context.client.rights
    if rights is None:
        return None
    if transactional_id is not None:
        if may(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return None
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if may_cluster(context, Operation.IDEMPOTENT_WRITE, log_denied=False):
        return None
    if rights.allows_somewhere(Operation.WRITE, ResourceType.TOPIC):
        return None
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def _initialize(context: RequestContext, request: InitProducerIdRequest) -> Fields:
    # Most producers are not transactional: imported with the first that is.
    from millstream.broker.handlers._transaction_requests import require_transactional_id
    from millstream.coordination.transactions.shard import InitRequest
    from millstream.coordination.transactions.transaction import Producer

    transactional_id = request.transactional_id or ""
    timeout_ms = milliseconds(request.transaction_timeout)
    expected = Producer(request.producer_id, request.producer_epoch)
    try:
        require_transactional_id(transactional_id)
        producer = await context.services.coordinators.transactions.initialize(
            InitRequest(transactional_id, timeout_ms, expected if expected.id != NONE else None)
        )
    except ApiError as error:
        return _refused(translate("init_producer_id", error.code, context.api_version))
    return _answer(*producer)


def _answer(producer_id: int, producer_epoch: int) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }


def _refused(code: ErrorCode) -> Fields:
    return {"error_code": code, "producer_id": NONE, "producer_epoch": NONE}
