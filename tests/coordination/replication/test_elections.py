"""Leaders and in-sync sets of single partitions."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import RECOVERED, RECOVERING, ClusterImage, PartitionImage
from millstream.coordination.cluster_records import NO_LEADER, PartitionRecord, TopicRecord
from millstream.coordination.replication.elections import (
    PartitionState,
    decide,
    record_for,
    with_replicas,
)

TOPIC_ID = uuid.UUID(int=7)


def state(
    isr: tuple[int, ...], leader: int, replicas: tuple[int, ...] = (1, 2, 3)
) -> PartitionState:
    return PartitionState(replicas, isr, leader)


@pytest.mark.parametrize(
    ("before", "active", "isr", "leader"),
    [
        (((1, 2, 3), 1), {1, 2, 3}, (1, 2, 3), 1),
        (((3, 2, 1), 1), {2, 3}, (3, 2), 2),  # the order of the assignment decides
        (((1, 2, 3), 2), {1, 2}, (1, 2), 2),  # the leader stays
        (((1, 3), 1), {2, 3}, (3,), 3),  # 2 is not in sync
        (((1,), 1), {2, 3}, (1,), NO_LEADER),  # the last member stays
        (((1, 2), 1), {3}, (1, 2), NO_LEADER),
        (((1, 2), NO_LEADER), {2, 3}, (2,), 2),
    ],
)
def test_leader_is_the_first_active_replica_in_sync(
    before: tuple[tuple[int, ...], int], active: set[int], isr: tuple[int, ...], leader: int
) -> None:
    after = decide(state(*before), active)
    assert (after.isr, after.leader) == (isr, leader)


def test_preferred_replica_leads_only_if_it_is_in_sync_and_active() -> None:
    assert decide(state((1, 2), 2), {1, 2}, prefers_first=True).leader == 1
    assert decide(state((2, 3), 2), {1, 2, 3}, prefers_first=True).leader == 2
    assert decide(state((1, 2), 2), {2, 3}, prefers_first=True).leader == 2


def test_unclean_election_takes_any_active_replica_only_if_no_other_can_lead() -> None:
    after = decide(state((1,), 1), {3, 2}, is_unclean_allowed=True)
    assert after == state((2,), 2)._replace(leader_recovery_state=RECOVERING)
    assert (
        decide(state((1, 2), 1), {2, 3}, is_unclean_allowed=True).leader_recovery_state == RECOVERED
    )
    assert decide(state((1,), 1), set(), is_unclean_allowed=True).leader == NO_LEADER


def test_reassignment_completes_when_the_added_replicas_are_in_sync() -> None:
    begun = PartitionState((4, 2, 1), (1, 2), 1, (4,), (1,))
    active = {1, 2, 4}
    assert decide(begun, active) == begun
    assert decide(begun._replace(isr=(1, 2, 4)), active) == PartitionState((4, 2), (2, 4), 4)


def test_reassignment_that_only_removes_waits_for_another_member_in_sync() -> None:
    begun = PartitionState((2, 1), (1,), 1, (), (1,))
    assert decide(begun, {1, 2}) == begun
    assert decide(begun._replace(isr=(1, 2)), {1, 2}) == PartitionState((2,), (2,), 2)


def test_directories_follow_their_replicas() -> None:
    one, two, nobody = (uuid.UUID(int=number) for number in (11, 12, 0))
    before = state((1, 2), 1, (1, 2))._replace(directories=(one, two))
    assert with_replicas(before, (3, 2)).directories == (nobody, two)


states = st.permutations([1, 2, 3, 4]).flatmap(
    lambda replicas: st.builds(
        lambda isr, leader, adding, removing: PartitionImage(
            tuple(replicas),
            tuple(isr),
            leader if leader in isr else NO_LEADER,
            3,
            5,
            (),
            tuple(adding),
            tuple(it for it in removing if it not in adding),
        ),
        st.lists(st.sampled_from(replicas), min_size=1, unique=True),
        st.integers(1, 4),
        st.lists(st.sampled_from(replicas), max_size=2, unique=True),
        st.lists(st.sampled_from(replicas), max_size=1),
    )
)


@given(states, st.sets(st.integers(1, 4)), st.booleans(), st.booleans())
def test_every_decision_is_sound_final_and_written_by_its_record(
    before: PartitionImage, active: set[int], unclean: bool, prefers_first: bool
) -> None:
    old = PartitionState.of(before)
    after = decide(old, active, is_unclean_allowed=unclean, prefers_first=prefers_first)
    assert after.isr
    assert set(after.isr) <= set(after.replicas)
    assert after.leader == NO_LEADER or after.leader in active & set(after.isr)
    if after.leader_recovery_state == RECOVERED:
        assert set(after.isr) <= set(old.isr), "nobody joins without having all records"
    again = decide(after, active, is_unclean_allowed=unclean, prefers_first=prefers_first)
    assert again == after
    topic = [TopicRecord("t", TOPIC_ID), PartitionRecord(0, TOPIC_ID, (1,), (1,), 1)]
    image = ClusterImage().apply(topic, 0)
    image = image.apply([PartitionRecord(0, TOPIC_ID, *before[:5], (), (), ())], 1)
    full = PartitionRecord(
        0, TOPIC_ID, before.replicas, before.isr, before.leader, 3, 5,
        before.removing_replicas, before.adding_replicas,
    )  # fmt: skip
    image = image.apply([full], 2)
    record = record_for(TOPIC_ID, 0, before, after)
    if record is None:
        assert after == old
        return
    made = image.apply([record], 3).topics["t"].partitions[0]
    assert PartitionState.of(made) == after
    must_bump = after.leader != old.leader or not set(old.replicas) <= set(after.replicas)
    assert (made.leader_epoch, made.partition_epoch) == (3 + must_bump, 6)
