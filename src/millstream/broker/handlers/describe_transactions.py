"""DescribeTransactions, v0: the state of transactional ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import may_topic, require_transaction
from millstream.broker.handlers._transaction_requests import require_transactional_id
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

    from millstream.coordination.transactions.records import TransactionValue
    from millstream.protocol.messages import Fields


async def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> Fields:
    return {
        "transaction_states": [
            await _describe(context, transactional_id)
            for transactional_id in request.transactional_ids
        ]
    }


async def _describe(context: RequestContext, transactional_id: str) -> Fields:
    try:
        require_transaction(context, Operation.DESCRIBE, transactional_id)
        require_transactional_id(transactional_id)
        described = await context.services.coordinators.transactions.describe(transactional_id)
        if described is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    except ApiError as error:
        return {"error_code": error.code, "transactional_id": transactional_id}
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        **_fields(context, described),
    }


def _fields(context: RequestContext, described: TransactionValue) -> Fields:
    return {
        "transaction_state": described.state.label,
        "transaction_timeout": described.timeout_ms,
        "transaction_start_time": described.start_ms,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "topics": [
            {"topic": partition.topic, "partitions": partition.partitions}
            for partition in described.partitions or ()
            if may_topic(context, Operation.DESCRIBE, partition.topic, log_denied=False)
        ],
    }
