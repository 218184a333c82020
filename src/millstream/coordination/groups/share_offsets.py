"""Administration of share groups: offsets reset, offsets and groups deleted.

A share group's position in a partition (its start offset) is the persister's. What is decided here
is whether it may be changed (only while the group has no members), and what the group writes down
before and after the persister is asked (share_state_partitions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.groups.group import Topics, require_group_id
from millstream.coordination.groups.share import ShareGroup
from millstream.coordination.groups.share_groups import ShareGroups
from millstream.coordination.groups.share_messages import (
    AlteredOffsets,
    AlteredPartition,
    DeletedTopic,
    Initialization,
)
from millstream.coordination.groups.share_state_partitions import NamedPartitions
from millstream.coordination.result import Result, ResultBuilder
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ErrorCode

NOTHING_TO_DELETE = "There is no offset information to delete."


def alter_offsets(
    groups: ShareGroups,
    group_id: str,
    positions: Sequence[tuple[str, int, int]],
    now_ms: int,
) -> Result[AlteredOffsets]:
    """AlterShareGroupOffsets: (topic, partition, start offset). Creates the group if needed."""
    require_group_id(group_id)
    group = groups.group_to_be(group_id)
    group.validate_delete()
    topics = groups.context.topics
    altered = tuple(_altered(topics, name, partition) for name, partition, _ in positions)
    start_offsets: dict[tuple[UUID, int], int] = {}
    by_topic: dict[UUID, NamedPartitions] = {}
    for outcome, (_, _, start_offset) in zip(altered, positions, strict=True):
        if outcome.topic_id is not None and outcome.error is ErrorCode.NONE:
            start_offsets[outcome.topic_id, outcome.partition] = start_offset
            known = by_topic.get(outcome.topic_id, NamedPartitions(outcome.topic, frozenset()))
            partitions = known.partitions | {outcome.partition}
            by_topic[outcome.topic_id] = NamedPartitions(outcome.topic, partitions)
    if not start_offsets:
        nothing = Initialization(group_id, group.epoch, {})
        return Result(response=AlteredOffsets(altered, nothing))
    out = ResultBuilder()
    begun = groups.begin_initialization(group, by_topic, start_offsets, group.epoch, out, now_ms)
    return out.result(AlteredOffsets(altered, begun))


def _altered(topics: Topics, name: str, partition: int) -> AlteredPartition:
    topic_id = topics.topic_id(name)
    exists = topic_id is not None and 0 <= partition < (topics.partition_count(topic_id) or 0)
    error = ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return AlteredPartition(name, topic_id, partition, error)


def initialized_partitions(groups: ShareGroups, group_id: str) -> Assignment:
    """The partitions in which the group has a position; none when there is no such group."""
    group = groups.groups.get(group_id)
    return group.state.assignable() if isinstance(group, ShareGroup) else {}


def begin_delete_offsets(
    groups: ShareGroups, group_id: str, names: Iterable[str]
) -> Result[tuple[DeletedTopic, ...]]:
    """DeleteShareGroupOffsets: state to delete; these partitions are no longer assigned."""
    require_group_id(group_id)
    group = groups.group(group_id)
    group.validate_delete()
    deleted = tuple(_deleted(groups, group, name) for name in dict.fromkeys(names))
    begun = {topic.topic_id: topic.topic for topic in deleted if topic.topic_id and topic.keys}
    if not begun:
        return Result(response=deleted)
    return Result((group.state.deletion_begun(begun).record(group_id),), deleted)


def _deleted(groups: ShareGroups, group: ShareGroup, name: str) -> DeletedTopic:
    topic_id = groups.context.topics.topic_id(name)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id is None:
        return DeletedTopic(name, None, unknown, unknown.description)
    known = group.state.known().get(topic_id)
    if known is not None:
        keys = _keys(group.group_id, {topic_id: known.partitions})
    elif topic_id in group.state.deleting:
        keys = _all_keys(groups, group.group_id, topic_id)
    else:
        return DeletedTopic(name, None, unknown, NOTHING_TO_DELETE)
    return DeletedTopic(name, topic_id, keys=keys)


def offsets_deleted(
    groups: ShareGroups, group_id: str, topic_ids: Sequence[UUID]
) -> Result[ErrorCode]:
    """The persister has forgotten these topics."""
    group = groups.group(group_id)
    return Result((group.state.deletion_done(topic_ids).record(group_id),), ErrorCode.NONE)


def begin_delete_group(groups: ShareGroups, group_id: str) -> Result[tuple[SharePartitionKey, ...]]:
    """What the persister must forget before the group may go: nothing, if it is no share group."""
    group = groups.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return Result(response=())
    group.validate_delete()
    state = group.state
    known = state.known()
    keys = _keys(group_id, {t: named.partitions for t, named in known.items()})
    for topic_id in state.deleting:  # an earlier deletion was not completed
        keys += _all_keys(groups, group_id, topic_id)
    if not keys:
        return Result(response=())
    begun = state.deletion_begun({t: named.topic for t, named in known.items()})
    return Result((begun.record(group_id),), keys)


def _keys(group_id: str, partitions: Mapping[UUID, Iterable[int]]) -> tuple[SharePartitionKey, ...]:
    return tuple(
        SharePartitionKey(group_id, topic_id, partition)
        for topic_id, indexes in sorted(partitions.items())
        for partition in sorted(indexes)
    )


def _all_keys(groups: ShareGroups, group_id: str, topic_id: UUID) -> tuple[SharePartitionKey, ...]:
    count = groups.context.topics.partition_count(topic_id) or 0
    return _keys(group_id, {topic_id: range(count)})
