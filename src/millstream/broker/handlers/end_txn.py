"""EndTxn, v0-5: commit a transaction, or abort it.

* v2: PRODUCER_FENCED, which before was INVALID_PRODUCER_EPOCH
* v3: flexible
* v4: TRANSACTION_ABORTABLE (not used)
* v5: protocol v2 (KIP-890): the end bumps the producer's epoch, and the answer contains its new id
  and epoch. A repeated request gets the same answer

Answered once the decision is durable; the markers follow. Up to v4, a late EndTxn on a connection
that its client has replaced is refused: docs/decisions/0009-late-end-of-transaction.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.error_codes import translate
from millstream.broker.handlers._rights import require_transaction
from millstream.broker.handlers._transaction_requests import (
    connection_of,
    require_transactional_id,
)
from millstream.broker.services import RequestContext
from millstream.coordination.transactions.shard import EndRequest
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.end_txn.v5.request import EndTxnRequest

    from millstream.protocol.messages import Fields

FIRST_OF_PROTOCOL_V2 = 5
NOBODY = Producer(-1, -1)


async def end_txn(context: RequestContext, request: EndTxnRequest) -> Fields:
    speaks_v2 = context.api_version >= FIRST_OF_PROTOCOL_V2
    end = EndRequest(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        committed=request.committed,
        client_version=2 if speaks_v2 else 0,
        connection=connection_of(context),
    )
    try:
        require_transaction(context, Operation.WRITE, request.transactional_id)
        require_transactional_id(request.transactional_id)
        producer = await context.services.coordinators.transactions.end(end)
    except ApiError as error:
        return _answer(translate("end_txn", error.code, context.api_version), NOBODY)
    return _answer(ErrorCode.NONE, producer)


def _answer(code: ErrorCode, producer: Producer) -> Fields:
    return {"error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}
