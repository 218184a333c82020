"""Reassignments: begun, replaced, cancelled, refused."""

from __future__ import annotations

import pytest

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import PartitionChangeRecord
from millstream.coordination.replication.reassignment import Target, is_reassigning, reassign
from millstream.errors import ErrorCode
from tests.coordination.replication.images import TOPIC_ID, applied, image, only, partition


def moved(before: ClusterImage, *replicas: int) -> ClusterImage:
    records, outcome = reassign(before, [Target("t", 0, replicas)])
    assert outcome == {("t", 0): None}
    return applied(before, records)


def test_reassignment_begins_with_all_replicas_and_the_same_leader() -> None:
    after = only(moved(image(5, partition(1, 2, 3)), 4, 5, 3))
    assert after.replicas == (4, 5, 3, 1, 2)
    assert (after.adding_replicas, after.removing_replicas) == ((4, 5), (1, 2))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 0, (1, 2, 3))
    assert is_reassigning(after)


def test_new_order_and_fewer_replicas_take_effect_at_once() -> None:
    ordered = only(moved(image(3, partition(1, 2, 3)), 3, 1, 2))
    assert (ordered.replicas, ordered.leader, ordered.leader_epoch) == ((3, 1, 2), 1, 0)
    fewer = only(moved(image(3, partition(1, 2, 3)), 2, 3))
    assert (fewer.replicas, fewer.isr, fewer.leader, fewer.leader_epoch) == ((2, 3), (2, 3), 2, 1)
    assert not is_reassigning(fewer)


def test_other_target_replaces_one_under_way() -> None:
    after = only(moved(moved(image(5, partition(1, 2)), 3, 4), 1, 5))
    assert after.replicas == (1, 5, 2)
    assert (after.adding_replicas, after.removing_replicas) == ((5,), (2,))


def test_cancelled_reassignment_drops_the_added_replicas() -> None:
    begun = moved(image(3, partition(1, 2)), 3, 2)
    begun = applied(begun, [PartitionChangeRecord(0, TOPIC_ID, isr=(1, 2))])
    records, outcome = reassign(begun, [Target("t", 0, None)])
    after = only(applied(begun, records))
    assert outcome == {("t", 0): None}
    assert (set(after.replicas), after.isr) == ({1, 2}, (1, 2))
    assert after.leader_epoch == 1, "a removed replica must not be counted again"
    assert not is_reassigning(after)


def test_cancelling_is_refused_if_it_would_drop_the_last_member_in_sync() -> None:
    moving = partition(3, 4, 1, isr=(3,), adding_replicas=(3, 4), removing_replicas=(1,))
    _, outcome = reassign(image(4, moving), [Target("t", 0, None)])
    error = outcome["t", 0]
    assert error is not None
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (Target("t", 0, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Target("t", 0, (1, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Target("t", 0, (1, 9)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Target("t", 0, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (Target("t", 3, (1,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Target("u", 0, (1,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_impossible_reassignment_is_refused(target: Target, code: ErrorCode) -> None:
    records, outcome = reassign(image(2, partition(1, 2)), [target])
    error = outcome[target.topic, target.partition_id]
    assert records == []
    assert error is not None
    assert error.code is code
