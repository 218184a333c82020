"""Positions of share groups set anew or deleted, and groups deleted."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.coordination.groups import share_offsets
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, Member
from tests.coordination.groups.share_harness import ShareClient, ShareDriver

A, B = UUID(int=1), UUID(int=2)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def driver() -> ShareDriver:
    return ShareDriver(FakeTopics(a=2, b=1))


def left_group(driver: ShareDriver, *topics: str) -> None:
    """A group that had a member."""
    member = ShareClient(driver, "m", *topics)
    member.join()
    member.leave()


def test_altering_sets_positions_of_partitions_that_exist(driver: ShareDriver) -> None:
    altered = driver.alter(("a", 0, 7), ("a", 2, 1), ("absent", 0, 1), ("b", 0, 3))
    assert [(p.topic, p.partition, p.error) for p in altered.partitions] == [
        ("a", 0, ErrorCode.NONE),
        ("a", 2, UNKNOWN),
        ("absent", 0, UNKNOWN),
        ("b", 0, ErrorCode.NONE),
    ]
    assert altered.initialization.start_offsets == {(A, 0): 7, (B, 0): 3}
    driver.initialize(altered.initialization)
    # The group was made for it, and a member finds it so.
    assert driver.share_group().state_name == "Empty"
    ShareClient(driver, "m", "a").join()
    assert driver.states == {("g", A, 0): (0, 7), ("g", B, 0): (0, 3), ("g", A, 1): (1, -1)}


def test_altering_nothing_that_exists_makes_no_group(driver: ShareDriver) -> None:
    altered = driver.alter(("absent", 0, 1))
    assert altered.initialization.start_offsets == {}
    assert driver.shard.groups == {}


def test_altering_has_a_later_state_epoch_than_what_it_replaces(driver: ShareDriver) -> None:
    left_group(driver, "a")
    before = driver.states["g", A, 0][0]  # type: ignore[index]
    assert driver.alter(("a", 0, 7)).initialization.state_epoch > before


def test_altering_that_came_to_nothing_leaves_the_old_position(driver: ShareDriver) -> None:
    left_group(driver, "a")
    driver.alter(("a", 0, 7))
    driver.reload()  # the coordinator dies before the persister was asked
    member = ShareClient(driver, "m2", "a")
    assert member.join().initialization is None
    assert member.assigned == {A: frozenset({0, 1})}
    assert driver.states["g", A, 0][1] == -1  # type: ignore[index]


def test_group_with_members_is_left_alone(driver: ShareDriver) -> None:
    ShareClient(driver, "m", "a").join()
    for event in (
        lambda: driver.alter(("a", 0, 7)),
        lambda: share_offsets.begin_delete_offsets(driver.groups, "g", ["a"]),
        lambda: share_offsets.begin_delete_group(driver.groups, "g"),
    ):
        with pytest.raises(ApiError) as refused:
            event()
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_group_of_another_kind_has_no_positions(driver: ShareDriver) -> None:
    Member(driver, "consumer", "a").join()
    for event in (
        lambda: driver.alter(("a", 0, 7)),
        lambda: share_offsets.begin_delete_offsets(driver.groups, "g", ["a"]),
    ):
        with pytest.raises(ApiError) as refused:
            event()
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert share_offsets.begin_delete_group(driver.groups, "g").response == ()
    assert share_offsets.initialized_partitions(driver.groups, "g") == {}


def test_deleting_offsets_names_what_the_persister_must_forget(driver: ShareDriver) -> None:
    left_group(driver, "a")
    begun = driver.apply(share_offsets.begin_delete_offsets(driver.groups, "g", ["a", "b", "x"]))
    assert [(t.topic, t.error, len(t.keys)) for t in begun] == [
        ("a", ErrorCode.NONE, 2),
        ("b", UNKNOWN, 0),
        ("x", UNKNOWN, 0),
    ]
    assert begun[1].error_message == share_offsets.NOTHING_TO_DELETE
    assert share_offsets.initialized_partitions(driver.groups, "g") == {}
    assert driver.share_group().state.deleting == {A: "a"}
    driver.apply(share_offsets.offsets_deleted(driver.groups, "g", [A]))
    assert driver.share_group().state.topic_ids() == set()


def test_deleting_offsets_goes_on_where_it_was_interrupted(driver: ShareDriver) -> None:
    left_group(driver, "a")
    driver.apply(share_offsets.begin_delete_offsets(driver.groups, "g", ["a"]))
    driver.reload()
    again = driver.apply(share_offsets.begin_delete_offsets(driver.groups, "g", ["a"]))
    assert again[0].keys == (SharePartitionKey("g", A, 0), SharePartitionKey("g", A, 1))


def test_deleted_position_begins_anew_for_the_next_member(driver: ShareDriver) -> None:
    left_group(driver, "a")
    driver.apply(share_offsets.begin_delete_offsets(driver.groups, "g", ["a"]))
    driver.states.clear()
    member = ShareClient(driver, "m", "a")
    member.join()
    assert member.assigned == {A: frozenset({0, 1})}
    assert driver.states.keys() == {("g", A, 0), ("g", A, 1)}
    assert driver.share_group().state.deleting == {}


def test_deleting_a_group_first_empties_the_persister(driver: ShareDriver) -> None:
    left_group(driver, "a", "b")
    driver.apply(share_offsets.begin_delete_offsets(driver.groups, "g", ["b"]))
    keys = driver.apply(share_offsets.begin_delete_group(driver.groups, "g"))
    # Also what an earlier deletion may have left.
    assert set(keys) == {("g", A, 0), ("g", A, 1), ("g", B, 0)}
    driver.reload()
    assert set(driver.apply(share_offsets.begin_delete_group(driver.groups, "g"))) == set(keys)
    driver.apply(driver.shard.delete_group("g"))
    assert driver.shard.groups == {}


def test_deleting_a_group_without_positions_asks_nobody(driver: ShareDriver) -> None:
    left_group(driver, "absent")
    result = share_offsets.begin_delete_group(driver.groups, "g")
    assert (result.response, result.records) == ((), ())
    assert share_offsets.begin_delete_group(driver.groups, "no group").response == ()
