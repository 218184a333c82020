"""WriteTxnMarkers, v1-2: end transactions in partitions that this broker leads.

* v1: flexible
* v2: the version of each transaction (KIP-890)

It comes from coordinators on other brokers, and from administrators that abort a hanging
transaction (Apache's TransactionsCommand, `millstream transaction abort`). A coordinator on this
broker writes its markers without a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.error_codes import translate
from millstream.broker.handlers._rights import may_cluster
from millstream.broker.services import RequestContext
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest

    from millstream.broker.replicas.pending import PendingAppend
    from millstream.protocol.messages import Fields


async def write_txn_markers(context: RequestContext, request: WriteTxnMarkersRequest) -> Fields:
    is_allowed = may_cluster(context, Operation.ALTER, log_denied=False) or may_cluster(
        context, Operation.CLUSTER_ACTION
    )
    start = _start if is_allowed else _refuse
    started = [(marker.producer_id, start(context, marker)) for marker in request.markers]
    return {
        "markers": [
            {
                "producer_id": producer_id,
                "topics": [
                    {
                        "name": name,
                        "partitions": [await _result(*partition) for partition in partitions],
                    }
                    for name, partitions in topics
                ],
            }
            for producer_id, topics in started
        ]
    }


_Started = list[tuple[str, list[tuple[int, "PendingAppend | ApiError"]]]]


def _start(context: RequestContext, asked: Any) -> _Started:
    """Write one marker to all its partitions, so that they share a flush."""
    marker = TransactionMarker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        coordinator_epoch=asked.coordinator_epoch,
        committed=asked.transaction_result,
        transaction_version=asked.transaction_version,
    )
    return [
        (
            topic.name,
            [
                (index, _write(context, topic.name, index, marker))
                for index in topic.partition_indexes
            ],
        )
        for topic in asked.topics
    ]


def _refuse(context: RequestContext, asked: Any) -> _Started:
    refusal = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return [
        (topic.name, [(index, refusal) for index in topic.partition_indexes])
        for topic in asked.topics
    ]


def _write(
    context: RequestContext, topic: str, index: int, marker: TransactionMarker
) -> PendingAppend | ApiError:
    try:
        return context.services.coordinators.write_marker(topic, index, marker)
    except ApiError as error:
        return error


async def _result(index: int, written: PendingAppend | ApiError) -> Fields:
    code = ErrorCode.NONE
    try:
        if isinstance(written, ApiError):
            raise written
        await written
    except ApiError as error:
        code = translate("write_txn_markers", error.code)
    return {"partition_index": index, "error_code": code}
