"""The partitions this broker has a replica of, by topic name and by topic id.

The partitions of a new topic are opened one after another, so that a thousand of them do not hold
the event loop. One that is needed before its turn is opened at once (`Unopened`): no request fails
because its partition is not open yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millstream.broker.replicas.partition import Partition
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.replicas.flushing import Flusher
    from millstream.clock import Clock
    from millstream.coordination.cluster import PartitionImage
    from millstream.storage.log import Log


class Unopened(Protocol):
    """Partitions that this broker leads and has not opened yet."""

    def contains(self, topic: str, index: int) -> bool: ...

    def contains_topic(self, topic_id: UUID) -> bool: ...

    def open(self, topic: str | UUID, index: int) -> Partition | None:
        """Open the partition and add it to the table. None if it is not one of these, or if it
        cannot be opened now."""

    def is_elsewhere(self, topic: str | UUID, index: int) -> bool:
        """Whether the partition exists, and this broker does not lead it."""


class _NoneUnopened:
    def contains(self, topic: str, index: int) -> bool:
        return False

    def contains_topic(self, topic_id: UUID) -> bool:
        return False

    def open(self, topic: str | UUID, index: int) -> Partition | None:
        return None

    def is_elsewhere(self, topic: str | UUID, index: int) -> bool:
        return False


class PartitionTable:
    """Finds a partition by name or id."""

    def __init__(self, flusher: Flusher, clock: Clock) -> None:
        self._flusher = flusher
        self._clock = clock
        self.unopened: Unopened = _NoneUnopened()
        self.on_remove: list[Callable[[Partition], None]] = []  # called with a deleted partition
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[UUID, int], Partition] = {}
        self._per_topic_id: Counter[UUID] = Counter()  # how many partitions have it

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def add(self, topic: str, index: int, log: Log, *, leader_epoch: int) -> Partition:
        """Lead the only replica. An existing partition only gets the new leader epoch."""
        partition = self._by_name.get((topic, index))
        if partition is not None:
            partition.begin_epoch(leader_epoch)
            return partition
        partition = Partition(
            topic, index, log, leader_epoch=leader_epoch, flusher=self._flusher, clock=self._clock
        )
        return self._add(partition)

    def add_replica(
        self, topic: str, index: int, log: Log, image: PartitionImage, high_watermark: int
    ) -> Partition:
        """One of several replicas, whose role the caller sets; `high_watermark` is the last one
        known, if it is new here."""
        partition = self._by_name.get((topic, index))
        if partition is not None:
            return partition
        partition = Partition(
            topic,
            index,
            log,
            leader_epoch=image.leader_epoch,
            flusher=self._flusher,
            clock=self._clock,
            high_watermark=high_watermark,
            replica_count=max(2, len(image.replicas)),
        )
        return self._add(partition)

    def _add(self, partition: Partition) -> Partition:
        topic, index = partition.topic, partition.index
        self._by_name[topic, index] = partition
        if partition.topic_id is not None:
            self._by_id[partition.topic_id, index] = partition
            self._per_topic_id[partition.topic_id] += 1
        return partition

    def remove(self, topic: str, index: int) -> Partition | None:
        """Stop leading. The caller takes the partition offline."""
        partition = self._by_name.pop((topic, index), None)
        if partition is None:
            return None
        topic_id = partition.topic_id
        if topic_id is not None:
            del self._by_id[topic_id, index]
            self._per_topic_id[topic_id] -= 1
            if not self._per_topic_id[topic_id]:
                del self._per_topic_id[topic_id]
        for callback in self.on_remove:
            callback(partition)
        return partition

    def peek(self, topic: str, index: int) -> Partition | None:
        """The partition, if it is open."""
        return self._by_name.get((topic, index))

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index)) or self.unopened.open(topic, index)

    def get_by_id(self, topic_id: UUID, index: int) -> Partition | None:
        return self._by_id.get((topic_id, index)) or self.unopened.open(topic_id, index)

    def is_online(self, topic: str, index: int) -> bool:
        """Whether requests for a partition that this broker leads are served, now or in a moment:
        its log may be being truncated or moved. Does not open it."""
        partition = self._by_name.get((topic, index))
        if partition is None:
            return self.unopened.contains(topic, index)
        return partition.offline_error is None or not partition.is_led_here

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        return {key: partition.high_watermark for key, partition in self._by_name.items()}

    def find(self, topic: str | UUID, index: int) -> Partition:
        """By name or id. Raises `ApiError` with the code that clients expect for each."""
        if isinstance(topic, str):
            partition = self._by_name.get((topic, index))
        else:
            partition = self._by_id.get((topic, index))
        if partition is None:
            partition = self.unopened.open(topic, index)
        if partition is None:
            if self.unopened.is_elsewhere(topic, index):
                raise ApiError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"this broker does not lead partition {index} of topic {topic}",
                )
            if not isinstance(topic, str) and not self._has_topic(topic):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {index} of topic {topic} does not exist",
            )
        return partition

    def _has_topic(self, topic_id: UUID) -> bool:
        return topic_id in self._per_topic_id or self.unopened.contains_topic(topic_id)
