"""Committed offsets: one per group, topic and partition, with a text of the client.

Offsets belong to a group id, whether its group is classic, consumer or *simple* (one that only
commits: it has no members and is made by its first commit). They exist until the group or topic is
deleted, they are deleted, or they expire:

    group without members       offsets.retention.minutes after it became empty
    simple group                as long after the commit
    group with members          as long after the commit, and only of topics that nobody in it
                                subscribes to any more
    commit with its own expiry  (OffsetCommit v2 to v4) at that time

An empty group whose last offset has expired is removed with it.

An offset committed in a transaction is pending until the transaction ends (`pending_offsets.py`).
Meanwhile a fetch returns the previous offset, or UNSTABLE_OFFSET_COMMIT if it requires stable
offsets; neither it nor its group expires. Deleting the offset or the group also deletes pending
offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from millstream.coordination.group_records import (
    NO_TOPIC_ID,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.coordination.groups.group import Group, OffsetCommitter, PartitionValidator
from millstream.coordination.groups.pending_offsets import PendingOffsets
from millstream.coordination.result import CoordinatorRecord
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import NO_TIMESTAMP

NO_OFFSET = -1
NO_RETENTION_MS = -1  # the committer leaves the expiry to the broker


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class TopicCommit:
    topic: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionCommit, ...]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    group_id: str
    committer: OffsetCommitter
    topics: tuple[TopicCommit, ...]
    retention_ms: int = NO_RETENTION_MS


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """The outcome for one partition of a commit or of a deletion."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicFetch:
    topic: str
    topic_id: uuid.UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    group_id: str
    topics: tuple[TopicFetch, ...] | None  # None: all that the group has
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


class OffsetStore:
    """The committed offsets of a shard. Only replaying records changes them."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self._pending = PendingOffsets()

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._pending.drop(key)
            self._remove(key)
        else:
            self._pending.supersede(key)
            self._put(key, value)

    def replay_pending(
        self, key: OffsetCommitKey, value: OffsetCommitValue, producer_id: int
    ) -> None:
        """The offset is part of the producer's open transaction."""
        self._pending.add(key, value, producer_id)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        for key, value in self._pending.end(producer_id, committed).items():
            self._put(key, value)

    def _put(self, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        topics = self._by_group.setdefault(key.group_id, {})
        topics.setdefault(key.topic, {})[key.partition] = value

    def _remove(self, key: OffsetCommitKey) -> None:
        topics = self._by_group.get(key.group_id, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
        if not topics:
            self._by_group.pop(key.group_id, None)

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def group_ids(self) -> list[str]:
        return list(self._by_group)

    def of_group(self, group_id: str) -> Iterator[tuple[OffsetCommitKey, OffsetCommitValue]]:
        for topic, partitions in self._by_group.get(group_id, {}).items():
            for partition, value in partitions.items():
                yield OffsetCommitKey(group_id, topic, partition), value

    # --- decisions: records that would change the store

    def commit(
        self,
        request: CommitRequest,
        validator: PartitionValidator | None,
        *,
        metadata_max_bytes: int,
        now_ms: int,
    ) -> tuple[list[CoordinatorRecord], tuple[CommittedPartition, ...]]:
        """The records of a commit, and the outcome for each partition."""
        records: list[CoordinatorRecord] = []
        outcomes: list[CommittedPartition] = []
        expire_ms = NO_TIMESTAMP
        if request.retention_ms != NO_RETENTION_MS:
            expire_ms = now_ms + request.retention_ms
        for topic in request.topics:
            for commit in topic.partitions:
                metadata = commit.metadata or ""
                if len(metadata) > metadata_max_bytes:
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                    outcomes.append(CommittedPartition(topic.topic, commit.partition, error))
                    continue
                if validator is not None:
                    validator(topic.topic, topic.topic_id, commit.partition)
                value = OffsetCommitValue(
                    offset=commit.offset,
                    metadata=metadata,
                    commit_timestamp_ms=now_ms,
                    leader_epoch=commit.leader_epoch,
                    expire_timestamp_ms=expire_ms,
                    topic_id=topic.topic_id,
                )
                key = OffsetCommitKey(request.group_id, topic.topic, commit.partition)
                records.append(CoordinatorRecord(key, value))
                outcomes.append(CommittedPartition(topic.topic, commit.partition))
        return records, tuple(outcomes)

    def fetch(self, request: FetchRequest) -> tuple[FetchedOffset, ...]:
        """The requested offsets; a missing one, or one of a deleted topic, is -1."""
        group_id = request.group_id
        unstable = self._unstable_partitions(group_id) if request.require_stable else ()
        if request.topics is None:
            return tuple(
                _unstable(key.topic, key.partition)
                if (key.topic, key.partition) in unstable
                else _fetched(key.topic, key.partition, value)
                for key, value in self.of_group(group_id)
            )
        group = self._by_group.get(group_id, {})
        fetched: list[FetchedOffset] = []
        for topic in request.topics:
            offsets = group.get(topic.topic, {})
            for partition in topic.partitions:
                value = offsets.get(partition)
                if value is not None and is_other_topic(value.topic_id, topic.topic_id):
                    value = None
                if (topic.topic, partition) in unstable:
                    fetched.append(_unstable(topic.topic, partition))
                else:
                    fetched.append(_fetched(topic.topic, partition, value))
        return tuple(fetched)

    def _unstable_partitions(self, group_id: str) -> set[tuple[str, int]]:
        """Partitions with an open transaction that may change the offset."""
        return {(key.topic, key.partition) for key in self._pending.of_group(group_id)}

    def delete(
        self, group: Group, topics: Iterable[tuple[str, tuple[int, ...]]]
    ) -> tuple[list[CoordinatorRecord], tuple[CommittedPartition, ...]]:
        """Tombstones for existing offsets of topics that the group does not consume."""
        records: list[CoordinatorRecord] = []
        outcomes: list[CommittedPartition] = []
        for topic, partitions in topics:
            subscribed = group.is_subscribed_to(topic)
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            for partition in partitions:
                outcomes.append(CommittedPartition(topic, partition, error))
                if not subscribed and self._has(group.group_id, topic, partition):
                    records.append(_tombstone(group.group_id, topic, partition))
        return records, tuple(outcomes)

    def _has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether there is an offset to delete, committed or pending."""
        return (
            self.get(group_id, topic, partition) is not None
            or OffsetCommitKey(group_id, topic, partition) in self._pending
        )

    def delete_group(self, group_id: str) -> list[CoordinatorRecord]:
        keys = dict.fromkeys(key for key, _ in self.of_group(group_id))
        keys |= dict.fromkeys(self._pending.of_group(group_id))
        return [CoordinatorRecord(key, None) for key in keys]

    def delete_topic(self, topic: str, topic_id: uuid.UUID) -> list[CoordinatorRecord]:
        """Tombstones for a deleted topic's offsets; those of a later topic of that name stay."""
        committed = (
            (OffsetCommitKey(group_id, topic, partition), value)
            for group_id, topics in self._by_group.items()
            for partition, value in topics.get(topic, {}).items()
        )
        pending = ((key, value) for key, value in self._pending if key.topic == topic)
        keys = dict.fromkeys(
            key
            for key, value in (*committed, *pending)
            if not is_other_topic(value.topic_id, topic_id)
        )
        return [CoordinatorRecord(key, None) for key in keys]

    def expire(
        self, group: Group, *, retention_ms: int, now_ms: int
    ) -> tuple[list[CoordinatorRecord], bool]:
        """Tombstones for expired offsets, and whether the group has none left."""
        is_subscribed_to = _remembering(group.is_subscribed_to)
        records: list[CoordinatorRecord] = []
        kept = 0
        for key, value in self.of_group(group.group_id):
            may_go = key not in self._pending and not is_subscribed_to(key.topic)
            if may_go and _is_expired(group, value, retention_ms, now_ms):
                records.append(CoordinatorRecord(key, None))
            else:
                kept += 1
        return records, kept == 0 and not self._pending.has_group(group.group_id)


def group_not_found(group_id: str) -> ApiError:
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def _fetched(topic: str, partition: int, value: OffsetCommitValue | None) -> FetchedOffset:
    if value is None:
        return FetchedOffset(topic, partition)
    return FetchedOffset(topic, partition, value.offset, value.leader_epoch, value.metadata)


def _unstable(topic: str, partition: int) -> FetchedOffset:
    return FetchedOffset(topic, partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)


def is_other_topic(committed: uuid.UUID, asked: uuid.UUID) -> bool:
    """Whether the offset was committed to another topic of the same name, by its id."""
    return NO_TOPIC_ID not in (committed, asked) and committed != asked


def _is_expired(group: Group, value: OffsetCommitValue, retention_ms: int, now_ms: int) -> bool:
    base_ms = group.offset_expiry_base_ms(value)
    if base_ms is None:
        return False
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - base_ms >= retention_ms


def _remembering(question: Callable[[str], bool]) -> Callable[[str], bool]:
    """Ask only once per topic: the answer means reading every member's subscription."""
    answers: dict[str, bool] = {}

    def ask(topic: str) -> bool:
        if topic not in answers:
            answers[topic] = question(topic)
        return answers[topic]

    return ask


def _tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
