"""What a consumer group answers about commits, and what replaying its records makes of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millstream.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    OffsetCommitValue,
)
from millstream.coordination.groups.consumer import ConsumerGroup, member_tombstones
from millstream.coordination.groups.consumer_member import ConsumerMember, Subscription
from millstream.coordination.groups.group import OffsetCommitter
from millstream.coordination.result import CoordinatorRecord
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, Member, ShardDriver, settle

FOO = UUID(int=1)


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver(FakeTopics(foo=6))


@pytest.fixture
def moved(driver: ShardDriver) -> ShardDriver:
    """Member `a` is at epoch 2; it has 0 to 2 since epoch 1 and gave up the others."""
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    settle(first, second)
    return driver


def committer(member_id: str, epoch: int, **fields: Any) -> OffsetCommitter:
    return OffsetCommitter(member_id, epoch, None, fields.pop("api_version", 9), **fields)


def refusal(group: ConsumerGroup, who: OffsetCommitter, partition: int = 0) -> ErrorCode:
    try:
        validate = group.validate_offset_commit(who)
        if validate is not None:
            validate("foo", FOO, partition)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def test_commit_of_the_current_epoch_is_accepted_for_any_partition(moved: ShardDriver) -> None:
    assert refusal(moved.group(), committer("a", 2), partition=5) is ErrorCode.NONE


@pytest.mark.parametrize(("partition", "code"), [(0, "NONE"), (5, "STALE_MEMBER_EPOCH")])
def test_commit_of_an_older_epoch_is_good_for_what_the_member_kept(
    moved: ShardDriver, partition: int, code: str
) -> None:
    assert refusal(moved.group(), committer("a", 1), partition) is ErrorCode[code]


def test_commit_from_before_the_partition_was_assigned_is_stale(moved: ShardDriver) -> None:
    assert refusal(moved.group(), committer("b", 1), 3) is ErrorCode.STALE_MEMBER_EPOCH


def test_commit_of_a_newer_epoch_is_stale(moved: ShardDriver) -> None:
    assert refusal(moved.group(), committer("a", 3)) is ErrorCode.STALE_MEMBER_EPOCH


def test_commit_of_a_stranger_is_refused(moved: ShardDriver) -> None:
    group = moved.group()
    assert refusal(group, committer("x", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, committer("", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    anonymous = committer("", -1, is_transactional=True)
    assert refusal(group, anonymous) is ErrorCode.NONE


def test_commit_in_a_version_without_epochs_is_refused(moved: ShardDriver) -> None:
    old = committer("a", 2, api_version=8)
    assert refusal(moved.group(), old) is ErrorCode.UNSUPPORTED_VERSION


def test_administrator_commits_only_to_an_empty_group(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    assert refusal(driver.group(), committer("", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    member.leave()
    assert refusal(driver.group(), committer("", -1)) is ErrorCode.NONE


def test_offset_fetch_checks_the_members_epoch(moved: ShardDriver) -> None:
    group = moved.group()
    group.validate_offset_fetch(None, -1)
    group.validate_offset_fetch("a", 2)
    for member_id, epoch, code in (
        ("a", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(ApiError) as refused:
            group.validate_offset_fetch(member_id, epoch)
        assert refused.value.code is code


def test_group_knows_what_it_is_subscribed_to(driver: ShardDriver) -> None:
    Member(driver, "a", "named", topic_regex="fo+").join()
    group = driver.group()
    assert group.is_subscribed_to("named")
    assert group.is_subscribed_to("foo")
    assert not group.is_subscribed_to("bar")


def test_offsets_expire_from_the_time_of_their_commit(driver: ShardDriver) -> None:
    Member(driver, "a", "foo").join()
    assert driver.group().offset_expiry_base_ms(OffsetCommitValue(1, "", 123)) == 123


def test_tombstones_replayed_in_order_leave_nothing(moved: ShardDriver) -> None:
    group = moved.group()
    records = group.tombstones()
    assert records[-1].key == ConsumerGroupMetadataKey("g"), "the group's own goes last"
    for record in records:
        group.replay(record.key, record.value)
    assert (group.members, group.target, group.resolved) == ({}, {}, {})
    assert group.assignment_epoch == -1
    assert not group.is_owned(FOO, 0)


def test_tombstones_of_what_is_not_there_are_ignored(driver: ShardDriver) -> None:
    groups = driver.shard.consumer_groups
    for record in member_tombstones("g", "nobody"):
        groups.replay(record.key, record.value)
    assert "g" not in driver.shard.groups
    Member(driver, "a", "foo").join()
    for record in member_tombstones("g", "nobody"):
        driver.group().replay(record.key, record.value)
    assert driver.group().members.keys() == {"a"}


def test_partition_stays_owned_when_its_old_owners_record_comes_late(driver: ShardDriver) -> None:
    """Compaction can bring records of different members closer together, never out of order."""
    group = ConsumerGroup("g", driver.shard.consumer_groups)
    old = ConsumerMember("old", assigned={FOO: {0: 1}}, epoch=1)
    new = ConsumerMember("new", assigned={FOO: {0: 2}}, epoch=2)
    for member in (old, new):
        record = member.assignment_record("g")
        group.replay(record.key, record.value)
    group.replay(ConsumerGroupCurrentMemberAssignmentKey("g", "old"), None)
    assert group.is_owned(FOO, 0)
    group.replay(ConsumerGroupCurrentMemberAssignmentKey("g", "new"), None)
    assert not group.is_owned(FOO, 0)


def test_static_member_is_found_under_its_newest_member_id(driver: ShardDriver) -> None:
    group = ConsumerGroup("g", driver.shard.consumer_groups)
    for member_id in ("old", "new"):
        member = ConsumerMember(
            member_id, instance_id="i", subscription=Subscription(frozenset({"foo"}))
        )
        record = member.subscription_record("g")
        group.replay(record.key, record.value)
    for tombstone in member_tombstones("g", "old"):
        group.replay(tombstone.key, tombstone.value)
    found = group.static_member("i")
    assert found is not None
    assert found.member_id == "new"
    assert group.subscriptions.total() == 1


def test_group_is_empty_before_its_first_member(driver: ShardDriver) -> None:
    group = ConsumerGroup("g", driver.shard.consumer_groups)
    assert (group.state_name, group.is_empty) == ("Empty", True)
    group.validate_delete()
    group.validate_offset_delete()
    record = CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey("g"), None)
    group.replay(record.key, record.value)
    assert group.assignment_epoch == -1
