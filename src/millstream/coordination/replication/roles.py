"""What a broker has to do when the metadata change: lead, follow, stop, delete.

    Lead     this broker leads the partition. `is_new_epoch`: begin a new leader epoch, at the
             log's end, before any append; else only the in-sync set or the replicas have changed
    Follow   another broker leads, in a new leader epoch
    Stop     this broker has a replica, but the partition has no leader: resign, and keep the log
    Delete   this broker has no replica any more, or the topic is gone: delete the log of this
             topic id

Changes are found by comparing two images, so any number of versions can be skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from millstream.coordination.cluster import ClusterImage, PartitionImage, TopicImage
from millstream.coordination.cluster_records import NO_LEADER


class Lead(NamedTuple):
    topic: str
    topic_id: uuid.UUID
    partition_id: int
    partition: PartitionImage
    is_new_epoch: bool


class Follow(NamedTuple):
    topic: str
    topic_id: uuid.UUID
    partition_id: int
    partition: PartitionImage


class Stop(NamedTuple):
    topic: str
    topic_id: uuid.UUID
    partition_id: int
    partition: PartitionImage


class Delete(NamedTuple):
    topic: str
    topic_id: uuid.UUID
    partition_id: int


RoleChange: TypeAlias = Lead | Follow | Stop | Delete


def role_changes(before: ClusterImage, now: ClusterImage, broker_id: int) -> list[RoleChange]:
    """What changes for this broker; deletions first, for a topic may have been recreated."""
    changes = now.changed_topics(before)
    found: list[RoleChange] = []
    for gone in changes.deleted:
        for index, partition in enumerate(gone.partitions):
            if broker_id in partition.replicas:
                found.append(Delete(gone.name, gone.id, index))
    for old, topic in changes.changed:
        found += _changes_of(old, topic, broker_id)
    for topic in changes.created:
        found += _changes_of(None, topic, broker_id)
    return found


def _changes_of(old: TopicImage | None, topic: TopicImage, broker_id: int) -> Iterator[RoleChange]:
    for index, partition in enumerate(topic.partitions):
        was = old.partitions[index] if old is not None and index < len(old.partitions) else None
        if was is partition:
            continue
        if was is not None and broker_id not in was.replicas:
            was = None
        change = _change_of(was, topic, index, broker_id)
        if change is not None:
            yield change
        elif was is not None and broker_id not in partition.replicas:
            yield Delete(topic.name, topic.id, index)


def _change_of(
    was: PartitionImage | None, topic: TopicImage, index: int, broker_id: int
) -> RoleChange | None:
    partition = topic.partitions[index]
    if broker_id not in partition.replicas:
        return None
    is_new_epoch = was is None or was.leader_epoch != partition.leader_epoch
    if partition.leader == broker_id:
        return Lead(topic.name, topic.id, index, partition, is_new_epoch)
    if not is_new_epoch:
        return None
    if partition.leader == NO_LEADER:
        return Stop(topic.name, topic.id, index, partition)
    return Follow(topic.name, topic.id, index, partition)
