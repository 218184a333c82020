"""AddPartitionsToTxn, v0-5: add partitions to a transaction; the first one begins it.

* v2: PRODUCER_FENCED, which before was INVALID_PRODUCER_EPOCH
* v3: flexible
* v4: several transactions at once, and `verify_only`: for brokers, which ask on behalf of clients
  that use protocol v2 (KIP-890)
* v5: TRANSACTION_ABORTABLE

All or nothing: where one partition does not exist, none is added (OPERATION_NOT_ATTEMPTED).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.error_codes import translate
from millstream.broker.handlers._rights import may_topic, require_cluster, require_transaction
from millstream.broker.handlers._transaction_requests import (
    connection_of,
    require_transactional_id,
)
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import INTERNAL_TOPICS
from millstream.coordination.transactions.shard import AddRequest
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.protocol.messages import Fields

FIRST_FOR_BROKERS = 4
CLIENT_VERSION_OF_BROKERS = 2


class _Asked(NamedTuple):
    """One transaction of a request."""

    transactional_id: str
    producer: Producer
    topics: Any
    verify_only: bool = False

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic.name, index) for topic in self.topics for index in topic.partitions]


async def add_partitions_to_txn(context: RequestContext, request: Any) -> Fields:
    if context.api_version >= FIRST_FOR_BROKERS:
        require_cluster(context, Operation.CLUSTER_ACTION)
    if context.api_version < FIRST_FOR_BROKERS:
        asked = _Asked(
            request.v3_and_below_transactional_id,
            Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
        )
        return {"results_by_topic_v3_and_below": await _topic_results(context, asked)}
    return {
        "error_code": ErrorCode.NONE,
        "results_by_transaction": [
            {
                "transactional_id": transaction.transactional_id,
                "topic_results": await _topic_results(
                    context,
                    _Asked(
                        transaction.transactional_id,
                        Producer(transaction.producer_id, transaction.producer_epoch),
                        transaction.topics,
                        transaction.verify_only,
                    ),
                ),
            }
            for transaction in request.transactions
        ],
    }


async def _topic_results(context: RequestContext, asked: _Asked) -> list[Fields]:
    errors = await _errors(context, asked)
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": errors.get((topic.name, index), ErrorCode.NONE),
                }
                for index in topic.partitions
            ],
        }
        for topic in asked.topics
    ]


async def _errors(context: RequestContext, asked: _Asked) -> dict[TopicPartition, ErrorCode]:
    """What went wrong, by partition; nothing where all is well."""
    try:
        if context.api_version < FIRST_FOR_BROKERS:
            require_transaction(context, Operation.WRITE, asked.transactional_id)
        unusable = _unusable(context, asked.partitions)
        if unusable:
            return dict.fromkeys(asked.partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | unusable
        require_transactional_id(asked.transactional_id)
        if asked.verify_only:
            return _verify(context, asked)
        await _add(context, asked)
    except ApiError as error:
        return dict.fromkeys(
            asked.partitions, translate("add_partitions_to_txn", error.code, context.api_version)
        )
    return {}


def _unusable(
    context: RequestContext, partitions: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    topics = context.services.metadata.image.topics
    errors: dict[TopicPartition, ErrorCode] = {}
    for name, index in partitions:
        topic = topics.get(name)
        if context.api_version < FIRST_FOR_BROKERS and (
            name in INTERNAL_TOPICS or not may_topic(context, Operation.WRITE, name)
        ):
            errors[name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= index < len(topic.partitions):
            errors[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return errors


async def _add(context: RequestContext, asked: _Asked) -> None:
    from_broker = context.api_version >= FIRST_FOR_BROKERS
    await context.services.coordinators.transactions.add_partitions(
        AddRequest(
            asked.transactional_id,
            asked.producer,
            frozenset(asked.partitions),
            client_version=CLIENT_VERSION_OF_BROKERS if from_broker else 0,
            connection=None if from_broker else connection_of(context),
        )
    )


def _verify(context: RequestContext, asked: _Asked) -> dict[TopicPartition, ErrorCode]:
    """Whether each partition is in the transaction. Raises what concerns all of them."""
    errors: dict[TopicPartition, ErrorCode] = {}
    for partition in asked.partitions:
        try:
            context.services.coordinators.transactions.verify(
                asked.transactional_id, *asked.producer, *partition
            )
        except ApiError as error:
            if error.code is not ErrorCode.INVALID_TXN_STATE:
                raise
            errors[partition] = ErrorCode.TRANSACTION_ABORTABLE
    return errors
