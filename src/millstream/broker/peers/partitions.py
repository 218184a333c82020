"""Partitions that other brokers lead: append records, and find their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.peers.peers import Peers
    from millstream.partitions import TopicPartition

PRODUCE_VERSION = 12  # by name; topic ids come with 13
PRODUCE_SECONDS = 30.0
ACKS_ALL = -1
LATEST, EARLIEST = -1, -2  # the special timestamps of ListOffsets


class RemotePartitions:
    """Partitions of other brokers. Every method raises `ApiError`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def append(self, leader: int, topic: str, index: int, batch: bytes) -> None:
        """Append a batch with acks=all. An error may come after it was appended."""
        partition = {"index": index, "records": batch}
        answer = await self._peers.call(
            leader,
            "produce",
            {
                "acks": ACKS_ALL,
                "timeout": int(PRODUCE_SECONDS * 1000),
                "topic_data": [{"name": topic, "partition_data": [partition]}],
            },
            version=PRODUCE_VERSION,
            timeout_seconds=PRODUCE_SECONDS,
        )
        (response,) = answer.responses
        (result,) = response.partition_responses
        _check(result, leader, result.error_message)

    async def end_offset(self, leader: int, topic: str, index: int) -> int:
        """The end of what consumers can read."""
        answer = await self._list_offsets(leader, {(topic, index): LATEST})
        (result,) = answer.topics[0].partitions
        _check(result, leader)
        return int(result.offset)

    async def offsets(
        self, leader: int, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The offsets of these timestamps, which may be the special ones of ListOffsets; without
        the partitions for which the broker answers an error, and -1 where there is no record."""
        answer = await self._list_offsets(leader, timestamps)
        return {
            (topic.name, int(result.partition_index)): int(result.offset)
            for topic in answer.topics
            for result in topic.partitions
            if result.error_code is ErrorCode.NONE
        }

    async def _list_offsets(self, leader: int, timestamps: Mapping[TopicPartition, int]) -> Any:
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, index), timestamp in timestamps.items():
            partition = {"partition_index": index, "timestamp": timestamp}
            topics.setdefault(topic, []).append(partition | {"current_leader_epoch": -1})
        named = [{"name": name, "partitions": them} for name, them in topics.items()]
        return await self._peers.call(leader, "list_offsets", {"replica_id": -1, "topics": named})


def _check(result: Any, leader: int, message: str | None = None) -> None:
    code: ErrorCode = result.error_code
    if code is not ErrorCode.NONE:
        raise ApiError(code, message or f"answered by broker {leader}")
