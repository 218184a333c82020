"""Transaction markers for partitions that other brokers lead (WriteTxnMarkers).

All markers of a turn for one broker go in one request, of one or many transactions, so that they
share a flush there. The caller repeats what fails: a marker that is written twice does no harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.replicas.pending import PendingAppend
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.peers.peers import Peers
    from millstream.coordination.transactions.marker import TransactionMarker
    from millstream.partitions import TopicPartition

NO_OFFSET = -1  # the other broker does not tell it


class _Queued(NamedTuple):
    marker: TransactionMarker
    partition: TopicPartition
    pending: PendingAppend


class RemoteMarkers:
    """Writes markers to other brokers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peers: Peers) -> None:
        self._loop = loop
        self._peers = peers
        self._queues: dict[int, list[_Queued]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def write(
        self, leader: int, topic: str, index: int, marker: TransactionMarker
    ) -> PendingAppend:
        """Write a marker to a partition of that leader; done when it is durable there."""
        pending = PendingAppend(NO_OFFSET, NO_OFFSET)
        queue = self._queues.get(leader)
        if queue is None:
            queue = self._queues[leader] = []
            self._loop.call_soon(self._send, leader)
        queue.append(_Queued(marker, (topic, index), pending))
        return pending

    def _send(self, leader: int) -> None:
        task = self._loop.create_task(self._write_all(leader, self._queues.pop(leader)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _write_all(self, leader: int, queue: list[_Queued]) -> None:
        by_marker: dict[TransactionMarker, dict[TopicPartition, PendingAppend]] = {}
        for marker, partition, pending in queue:
            by_marker.setdefault(marker, {})[partition] = pending
        try:
            answer = await self._peers.call(
                leader,
                "write_txn_markers",
                {"markers": [_fields(marker, list(told)) for marker, told in by_marker.items()]},
            )
            outcomes = list(map(_outcomes, answer.markers))
        except ApiError as error:
            for *_, pending in queue:
                pending.fail(error)
            return
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        for number, told in enumerate(by_marker.values()):
            codes = outcomes[number] if number < len(outcomes) else {}
            for partition, pending in told.items():
                code = codes.get(partition, missing)
                if code is ErrorCode.NONE:
                    pending.finish()
                else:
                    pending.fail(ApiError(code, f"answered by broker {leader}"))


def _fields(marker: TransactionMarker, partitions: list[TopicPartition]) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.committed,
        "topics": [
            {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
        ],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }


def _outcomes(marker: Any) -> dict[TopicPartition, ErrorCode]:
    return {
        (topic.name, int(partition.partition_index)): partition.error_code
        for topic in marker.topics
        for partition in topic.partitions
    }
