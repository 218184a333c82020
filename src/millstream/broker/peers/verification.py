"""Questions to a transaction coordinator on another broker: AddPartitionsToTxn v4 and later.

verify   are these partitions in the producer's ongoing transaction? (protocol 1)
add      add them, and begin the transaction with the first (protocol 2, KIP-890)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.peers.peers import Peers
    from millstream.partitions import TopicPartition

TIMEOUT_SECONDS = 5.0  # the client waits for it

# The coordinator has not seen the topic yet, or did not look because of another partition.
_NOT_READY = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED)


class RemoteTransactions:
    """The transaction coordinators of other brokers, as partition leaders ask them."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def ask(
        self,
        coordinator: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ApiError]:
        """Verify the partitions, or add them. Returns the refused ones; raises `ApiError` if there
        is no answer."""
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            topics.setdefault(topic, []).append(index)
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "verify_only": not adds,
            "topics": [{"name": name, "partitions": them} for name, them in topics.items()],
        }
        answer = await self._peers.call(
            coordinator,
            "add_partitions_to_txn",
            {"transactions": [transaction]},
            timeout_seconds=TIMEOUT_SECONDS,
        )
        if answer.error_code != ErrorCode.NONE:
            raise ApiError(answer.error_code, f"answered by broker {coordinator}")
        return _refused(answer, coordinator)


def _refused(answer: Any, coordinator: int) -> dict[TopicPartition, ApiError]:
    refused = {}
    for transaction in answer.results_by_transaction:
        for topic in transaction.topic_results:
            for partition in topic.results_by_partition:
                code = partition.partition_error_code
                if code in _NOT_READY:
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                if code is not ErrorCode.NONE:
                    refused[topic.name, int(partition.partition_index)] = ApiError(
                        code, f"answered by the transaction coordinator, broker {coordinator}"
                    )
    return refused
