"""Partitions of a share group with state in the persister: one record (type 15) per group.

Membership and state are in different topics, possibly on different brokers. To keep them
consistent, the group records its intent before it calls the persister, and the result afterwards:

    initializing   the persister may or may not have been asked; the next heartbeat asks (again)
    initialized    it has the state, so members may be given the partition
    deleting       it was asked to delete the topic's state; the next deletion asks again

A partition whose offset is reset (AlterShareGroupOffsets) is initializing and initialized at
once: if the reset fails, it still has its old offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from millstream.coordination.group_records import (
    NamedTopic,
    NamedTopicPartitions,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
)
from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.result import CoordinatorRecord


class NamedPartitions(NamedTuple):
    topic: str
    partitions: frozenset[int]


Partitions: TypeAlias = Mapping[UUID, NamedPartitions]


@dataclass(frozen=True, slots=True)
class StatePartitions:
    initializing: Partitions = field(default_factory=dict)
    initialized: Partitions = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)  # with the topics' names

    @classmethod
    def of(cls, value: ShareGroupStatePartitionMetadataValue) -> StatePartitions:
        return cls(
            _from_record(value.initializing_topics),
            _from_record(value.initialized_topics),
            {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
        )

    def record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ShareGroupStatePartitionMetadataKey(group_id),
            ShareGroupStatePartitionMetadataValue(
                _to_record(self.initializing),
                _to_record(self.initialized),
                tuple(NamedTopic(*topic) for topic in sorted(self.deleting.items())),
            ),
        )

    # --- what becomes of it

    def initialization_begun(self, partitions: Partitions) -> StatePartitions:
        deleting = {t: name for t, name in self.deleting.items() if t not in partitions}
        return replace(self, initializing=_union(self.initializing, partitions), deleting=deleting)

    def initialization_done(self, partitions: Partitions) -> StatePartitions:
        return replace(
            self,
            initializing=_difference(self.initializing, partitions),
            initialized=_union(self.initialized, partitions),
        )

    def deletion_begun(self, topics: Mapping[UUID, str]) -> StatePartitions:
        """Nothing of these topics may be given to members any more."""
        return StatePartitions(
            _without(self.initializing, topics),
            _without(self.initialized, topics),
            {**self.deleting, **topics},
        )

    def deletion_done(self, topic_ids: Collection[UUID]) -> StatePartitions:
        deleting = {t: name for t, name in self.deleting.items() if t not in topic_ids}
        return replace(self, deleting=deleting)

    def without_topics(self, topic_ids: Collection[UUID]) -> StatePartitions:
        """The topics are gone from the cluster."""
        return StatePartitions(
            _without(self.initializing, topic_ids),
            _without(self.initialized, topic_ids),
            {t: name for t, name in self.deleting.items() if t not in topic_ids},
        )

    # --- questions

    def topic_ids(self) -> set[UUID]:
        return {*self.initializing, *self.initialized, *self.deleting}

    def known(self) -> Partitions:
        """All that the persister may have state of, the topics being deleted excepted."""
        return _union(self.initialized, self.initializing)

    def assignable(self) -> Assignment:
        """What members may be given."""
        return {t: named.partitions for t, named in self.initialized.items()}


NO_STATE = StatePartitions()


def _union(known: Partitions, new: Partitions) -> dict[UUID, NamedPartitions]:
    union = dict(known)
    for topic_id, named in new.items():
        before = known.get(topic_id)
        partitions = named.partitions if before is None else before.partitions | named.partitions
        union[topic_id] = NamedPartitions(named.topic, partitions)
    return union


def _difference(known: Partitions, gone: Partitions) -> dict[UUID, NamedPartitions]:
    left = {}
    for topic_id, named in known.items():
        partitions = named.partitions
        if topic_id in gone:
            partitions -= gone[topic_id].partitions
        if partitions:
            left[topic_id] = NamedPartitions(named.topic, partitions)
    return left


def _without(known: Partitions, topic_ids: Collection[UUID]) -> dict[UUID, NamedPartitions]:
    return {t: named for t, named in known.items() if t not in topic_ids}


def _from_record(topics: tuple[NamedTopicPartitions, ...]) -> dict[UUID, NamedPartitions]:
    return {
        topic.topic_id: NamedPartitions(topic.topic_name, frozenset(topic.partitions))
        for topic in topics
    }


def _to_record(partitions: Partitions) -> tuple[NamedTopicPartitions, ...]:
    return tuple(
        NamedTopicPartitions(topic_id, named.topic, tuple(sorted(named.partitions)))
        for topic_id, named in sorted(partitions.items())
    )
