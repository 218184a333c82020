"""The partitions this broker leads, by topic name and by topic id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.replicas.partition import Partition
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.replicas.flushing import Flusher
    from millstream.clock import Clock
    from millstream.storage.log import Log


class PartitionTable:
    """Finds a partition by name or id."""

    def __init__(self, flusher: Flusher, clock: Clock) -> None:
        self._flusher = flusher
        self._clock = clock
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[UUID, int], Partition] = {}
        self._per_topic_id: Counter[UUID] = Counter()  # how many partitions have it

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def add(self, topic: str, index: int, log: Log, *, leader_epoch: int) -> Partition:
        """Lead a log. An existing partition only gets the new leader epoch."""
        partition = self._by_name.get((topic, index))
        if partition is not None:
            partition.begin_epoch(leader_epoch)
            return partition
        partition = Partition(
            topic, index, log, leader_epoch=leader_epoch, flusher=self._flusher, clock=self._clock
        )
        self._by_name[topic, index] = partition
        if partition.topic_id is not None:
            self._by_id[partition.topic_id, index] = partition
            self._per_topic_id[partition.topic_id] += 1
        return partition

    def remove(self, topic: str, index: int) -> Partition | None:
        """Stop leading: waiting requests get an error."""
        partition = self._by_name.pop((topic, index), None)
        if partition is None:
            return None
        topic_id = partition.topic_id
        if topic_id is not None:
            del self._by_id[topic_id, index]
            self._per_topic_id[topic_id] -= 1
            if not self._per_topic_id[topic_id]:
                del self._per_topic_id[topic_id]
        partition.go_offline(
            ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} was deleted")
        )
        return partition

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def get_by_id(self, topic_id: UUID, index: int) -> Partition | None:
        return self._by_id.get((topic_id, index))

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        return {key: partition.high_watermark for key, partition in self._by_name.items()}

    def find(self, topic: str | UUID, index: int) -> Partition:
        """By name or id. Raises `ApiError` with the code that clients expect for each."""
        if isinstance(topic, str):
            partition = self._by_name.get((topic, index))
        else:
            partition = self._by_id.get((topic, index))
            if partition is None and topic not in self._per_topic_id:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
        if partition is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {index} of topic {topic} does not exist",
            )
        return partition
