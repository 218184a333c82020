"""DescribeProducers, v0: the producers of partitions, and their open transactions.

What a partition says of a hanging transaction (its producer, where it began, which coordinator
spoke last) is all that is needed to abort it with WriteTxnMarkers (KIP-664).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_topic
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest

    from millstream.protocol.messages import Fields


def describe_producers(context: RequestContext, request: DescribeProducersRequest) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _describe(context, topic.name, index) for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


def _describe(context: RequestContext, topic: str, index: int) -> dict[str, Any]:
    try:
        require_topic(context, Operation.READ, topic)
        partition = context.services.partitions.find(topic, index)
        if partition.offline_error is not None:
            raise partition.offline_error
    except ApiError as error:
        return {
            "partition_index": index,
            "error_code": error.code,
            "error_message": error.message,
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "active_producers": [
            {
                "producer_id": state.producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.last_sequence,
                "last_timestamp": state.last_timestamp,
                "coordinator_epoch": state.coordinator_epoch,
                "current_txn_start_offset": state.transaction_start_offset,
            }
            for state in partition.producer_states()
        ],
    }
