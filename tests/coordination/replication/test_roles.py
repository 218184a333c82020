"""Roles: what a broker does when the metadata change."""

from __future__ import annotations

import uuid

from millstream.coordination.cluster_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from millstream.coordination.replication.roles import (
    Delete,
    Follow,
    Lead,
    RoleChange,
    Stop,
    role_changes,
)
from tests.coordination.replication.images import TOPIC_ID, applied, image, only, partition


def change(broker_id: int, record: PartitionChangeRecord) -> list[RoleChange]:
    before = image(3, partition(1, 2))
    return role_changes(before, applied(before, [record]), broker_id)


def test_new_partitions_are_led_and_followed() -> None:
    now = image(3, partition(1, 2))
    it = only(now)
    assert role_changes(image(3), now, 1) == [Lead("t", TOPIC_ID, 0, it, True)]
    assert role_changes(image(3), now, 2) == [Follow("t", TOPIC_ID, 0, it)]
    assert role_changes(image(3), now, 3) == []


def test_new_leader_is_followed_by_the_former_one() -> None:
    record = PartitionChangeRecord(0, TOPIC_ID, leader=2)
    (lead,) = change(2, record)
    (follow,) = change(1, record)
    assert isinstance(lead, Lead)
    assert lead.is_new_epoch
    assert lead.partition.leader_epoch == 1
    assert isinstance(follow, Follow)
    assert follow.partition.leader == 2


def test_change_of_the_in_sync_set_concerns_the_leader_only() -> None:
    record = PartitionChangeRecord(0, TOPIC_ID, isr=(1,))
    (lead,) = change(1, record)
    assert isinstance(lead, Lead)
    assert not lead.is_new_epoch
    assert change(2, record) == []


def test_same_leader_in_a_new_epoch_begins_anew() -> None:
    (lead,) = change(1, PartitionChangeRecord(0, TOPIC_ID, leader=1))
    assert isinstance(lead, Lead)
    assert lead.is_new_epoch
    assert isinstance(change(2, PartitionChangeRecord(0, TOPIC_ID, leader=1))[0], Follow)


def test_partition_without_leader_is_stopped_and_kept() -> None:
    record = PartitionChangeRecord(0, TOPIC_ID, leader=-1)
    assert [type(change(broker_id, record)[0]) for broker_id in (1, 2)] == [Stop, Stop]


def test_replica_that_is_moved_away_is_deleted_and_a_new_one_follows() -> None:
    record = PartitionChangeRecord(0, TOPIC_ID, replicas=(1, 3), isr=(1,), leader=1)
    assert change(2, record) == [Delete("t", TOPIC_ID, 0)]
    assert isinstance(change(3, record)[0], Follow)


def test_recreated_topic_is_deleted_first() -> None:
    before = image(3, partition(1, 2))
    other = uuid.UUID(int=78)
    now = applied(
        before,
        [
            RemoveTopicRecord(TOPIC_ID),
            TopicRecord("t", other),
            PartitionRecord(0, other, (2, 3), (2, 3), 2),
        ],
    )
    assert role_changes(before, now, 1) == [Delete("t", TOPIC_ID, 0)]
    assert [type(it) for it in role_changes(before, now, 2)] == [Delete, Lead]
    assert [type(it) for it in role_changes(before, now, 3)] == [Follow]
