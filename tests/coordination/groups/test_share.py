"""A share group as the shard and the commands on offsets see it."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.coordination.groups.group import GroupKind, OffsetCommitter
from millstream.coordination.groups.share import ShareGroup
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics
from tests.coordination.groups.share_harness import ShareClient, ShareDriver


@pytest.fixture
def driver() -> ShareDriver:
    return ShareDriver(FakeTopics(a=2, b=2))


def state(group: ShareGroup) -> object:
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assignment_timestamp_ms,
        group.members,
        group.target,
        group.state,
        group.subscribers,
    )


def test_group_is_the_same_after_it_was_loaded(driver: ShareDriver) -> None:
    ShareClient(driver, "m1", "a").join()
    ShareClient(driver, "m2", "a", "b").join()
    before = state(driver.share_group())
    for compacted in (False, True):
        driver.reload(compacted=compacted)
        assert state(driver.share_group()) == before


def test_group_is_stable_with_members_and_empty_without(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "a")
    member.join()
    group = driver.share_group()
    assert (group.kind, group.protocol_type) == (GroupKind.SHARE, "share")
    assert (group.state_name, group.is_empty) == ("Stable", False)
    assert group.is_subscribed_to("a")
    with pytest.raises(ApiError) as refused:
        group.validate_delete()
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert (group.state_name, group.is_empty) == ("Empty", True)
    assert not group.is_subscribed_to("a")
    group.validate_delete()


def test_group_commits_no_offsets(driver: ShareDriver) -> None:
    ShareClient(driver, "m", "a").join()
    group = driver.share_group()
    for refuse in (
        lambda: group.validate_offset_commit(OffsetCommitter("m", 1, None, 9)),
        group.validate_offset_delete,
    ):
        with pytest.raises(ApiError) as refused:
            refuse()
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    group.validate_offset_fetch("m", 1)  # it finds nothing


def test_group_knows_what_its_target_covers(driver: ShareDriver) -> None:
    one, two = ShareClient(driver, "m1", "a"), ShareClient(driver, "m2", "a")
    one.join()
    group, a = driver.share_group(), UUID(int=1)
    assert group.covered(a) == {0, 1}
    two.join()
    one.leave()
    assert group.covered(a) == {partition for _, partition in two.partitions}
    assert len(two.partitions) == 1
    assert group.covered(UUID(int=2)) == set()


def test_tombstones_remove_the_group_and_leave_nothing(driver: ShareDriver) -> None:
    ShareClient(driver, "m", "a").join()
    for record in driver.share_group().tombstones():
        driver.shard.replay(record)
    assert driver.shard.groups == {}
