"""AddOffsetsToTxn, v0-4: add a group's offsets to a transaction.

* v2: PRODUCER_FENCED, which before was INVALID_PRODUCER_EPOCH
* v3: flexible
* v4: TRANSACTION_ABORTABLE may be answered (it is not)

The group's partition of `__consumer_offsets` joins the transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.error_codes import translate
from millstream.broker.handlers._rights import require_group, require_transaction
from millstream.broker.handlers._transaction_requests import (
    connection_of,
    require_transactional_id,
)
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import OFFSETS_TOPIC
from millstream.coordination.transactions.shard import AddRequest
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import CoordinatorKind
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

    from millstream.protocol.messages import Fields


async def add_offsets_to_txn(context: RequestContext, request: AddOffsetsToTxnRequest) -> Fields:
    coordinators = context.services.coordinators
    try:
        require_transaction(context, Operation.WRITE, request.transactional_id)
        require_group(context, Operation.READ, request.group_id)
        require_transactional_id(request.transactional_id)
        index = await coordinators.partition_of(CoordinatorKind.GROUP, request.group_id)
        await coordinators.transactions.add_partitions(
            AddRequest(
                request.transactional_id,
                Producer(request.producer_id, request.producer_epoch),
                frozenset(((OFFSETS_TOPIC, index),)),
                connection=connection_of(context),
            )
        )
    except ApiError as error:
        return {"error_code": translate("add_offsets_to_txn", error.code, context.api_version)}
    return {"error_code": ErrorCode.NONE}
