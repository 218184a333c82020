"""A member and the two records that keep it."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.coordination.group_records import (
    GROUP_RECORDS,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    EpochedTopicPartitions,
)
from millstream.coordination.groups.consumer_member import (
    ConsumerMember,
    MemberState,
    Subscription,
    owned_partitions,
)

T = UUID(int=7)
MEMBER = ConsumerMember(
    "m",
    instance_id="i",
    rack_id="r",
    client_id="c",
    client_host="/h",
    subscription=Subscription(frozenset({"b", "a"}), "x.*"),
    rebalance_timeout_ms=1_000,
    server_assignor="uniform",
    classic=ClassicMemberMetadata(30_000, (ClassicProtocol("range", b"\0\1"),)),
    epoch=5,
    previous_epoch=4,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned={T: {0: 3, 2: 5}},
    pending_revocation={T: {1: 2}},
)


def test_member_is_the_same_after_its_records_were_written_and_read() -> None:
    read = ConsumerMember("m")
    for record in (MEMBER.subscription_record("g"), MEMBER.assignment_record("g")):
        decoded = GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record.key, record.value))
        assert decoded is not None
        _, value = decoded
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            read = read.with_assignment_of(value)
        else:
            read = read.with_subscription_of(value)
    assert read == MEMBER


def test_partitions_of_records_without_epochs_have_the_members() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(4, 3, 0, (EpochedTopicPartitions(T, (1, 2)),))
    assert ConsumerMember("m").with_assignment_of(value).assigned == {T: {1: 4, 2: 4}}


def test_tombstone_of_an_assignment_leaves_nothing_owned() -> None:
    gone = MEMBER.with_assignment_of(None)
    assert (gone.epoch, gone.assigned, gone.pending_revocation) == (-1, {}, {})


@pytest.mark.parametrize(("number", "state"), [(0, "STABLE"), (2, "UNRELEASED_PARTITIONS")])
def test_state_is_known_by_its_number(number: int, state: str) -> None:
    assert MemberState.of(number) is MemberState[state]


def test_state_of_a_later_version_is_unknown() -> None:
    assert MemberState.of(42) is MemberState.UNKNOWN


def test_assignment_epoch_covers_what_is_being_given_up() -> None:
    epochs = [MEMBER.assignment_epoch(T, partition) for partition in range(4)]
    assert epochs == [3, 2, 5, None]


def test_static_member_that_left_keeps_its_partitions_from_epoch_zero() -> None:
    left = MEMBER.left_for_a_while()
    assert (left.epoch, left.assigned) == (-2, {T: {0: 0, 2: 0}})
    assert left.pending_revocation == {}


def test_member_answers_for_what_it_has_and_what_it_gives_up() -> None:
    assert owned_partitions(MEMBER) == {T: frozenset({0, 1, 2})}
