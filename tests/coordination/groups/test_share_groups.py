"""Heartbeats of share groups: who is in, what each is given, and what must be initialized first."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from millstream.config.groups import GroupConfig
from millstream.coordination.groups import share_offsets
from millstream.coordination.groups.group import GroupSettings
from millstream.coordination.groups.share_messages import ShareHeartbeat
from millstream.coordination.groups.share_state_partitions import NamedPartitions, StatePartitions
from millstream.coordination.result import Result
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, Member
from tests.coordination.groups.share_harness import ShareClient, ShareDriver

A, B = UUID(int=1), UUID(int=2)
JOIN = ShareHeartbeat("g", "m", 0, topic_names=("a",))


@pytest.fixture
def driver() -> ShareDriver:
    return ShareDriver(FakeTopics(a=3, b=2))


def refusal(driver: ShareDriver, beat: ShareHeartbeat) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        driver.share_heartbeat(beat)
    return refused.value.code


# --- who may say what ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"member_id": ""},
        {"member_id": "m" * 37},
        {"group_id": ""},
        {"rack_id": ""},
        {"topic_names": None},
        {"topic_names": ()},
        {"member_epoch": -2},
    ],
)
def test_heartbeat_is_refused_that_no_group_could_take(
    driver: ShareDriver, change: dict[str, object]
) -> None:
    assert refusal(driver, replace(JOIN, **change)) is ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
    assert driver.shard.groups == {}


def test_heartbeat_of_a_stranger_is_refused(driver: ShareDriver) -> None:
    for epoch in (3, -1):
        beat = ShareHeartbeat("g", "m", epoch)
        assert refusal(driver, beat) is ErrorCode.GROUP_ID_NOT_FOUND
    ShareClient(driver, "m", "a").join()
    for epoch in (2, -1):
        beat = ShareHeartbeat("g", "stranger", epoch)
        assert refusal(driver, beat) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_with_another_epoch_is_fenced_unless_it_is_the_last_one_known(
    driver: ShareDriver,
) -> None:
    one, two = ShareClient(driver, "m1", "a"), ShareClient(driver, "m2", "a")
    one.join()
    known = one.epoch
    two.join()
    assert one.beat().member_epoch == known + 1
    # Its answer was lost, so it says again what it knows, and is told again.
    one.epoch = known
    again = one.beat()
    assert again.member_epoch == known + 1
    assert again.assignment is not None
    for epoch in (known - 1, known + 2):
        beat = ShareHeartbeat("g", "m1", epoch)
        assert refusal(driver, beat) is ErrorCode.FENCED_MEMBER_EPOCH


def test_group_takes_no_more_members_than_it_may() -> None:
    settings = GroupSettings(group_share_max_size=2)
    driver = ShareDriver(FakeTopics(a=3), settings)
    members = [ShareClient(driver, f"m{number}", "a") for number in range(3)]
    members[0].join()
    members[1].join()
    assert refusal(driver, replace(JOIN, member_id="m2")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    members[0].join()  # it is in already
    members[0].leave()
    members[2].join()


def test_group_of_another_kind_is_no_share_group_nor_the_other_way_round(
    driver: ShareDriver,
) -> None:
    Member(driver, "consumer", "a", group_id="consumers").join()
    beat = replace(JOIN, group_id="consumers")
    assert refusal(driver, beat) is ErrorCode.GROUP_ID_NOT_FOUND
    ShareClient(driver, "m", "a", group_id="shared").join()
    with pytest.raises(ApiError) as refused:
        Member(driver, "consumer", "a", group_id="shared").join()
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


# --- what they are given -----------------------------------------------------------------------


def test_members_share_partitions_and_are_told_when_that_changes(driver: ShareDriver) -> None:
    members = [ShareClient(driver, f"m{number}", "a") for number in range(5)]
    members[0].join()
    assert members[0].assigned == {A: frozenset({0, 1, 2})}
    assert members[0].beat().assignment is None
    for member in members[1:]:
        member.join()
    for member in members:
        member.beat()
    # Five members, three partitions: two places each, so nobody is without.
    assert sorted(len(member.partitions) for member in members) == [1, 1, 1, 1, 2]
    assert {p for member in members for p in member.partitions} == {(A, 0), (A, 1), (A, 2)}


def test_member_that_says_everything_is_told_everything(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "a")
    member.join()
    told = member.subscribe("a")
    assert told.assignment == {A: frozenset({0, 1, 2})}
    assert told.member_epoch == member.epoch
    assert member.join().assignment == {A: frozenset({0, 1, 2})}


def test_member_follows_its_subscription(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "a")
    member.join()
    member.subscribe("b")
    assert member.assigned == {B: frozenset({0, 1})}
    member.subscribe("a", "b", "absent")
    assert member.assigned == {A: frozenset({0, 1, 2}), B: frozenset({0, 1})}


def test_what_a_member_had_goes_to_the_others_when_it_leaves(driver: ShareDriver) -> None:
    one, two = ShareClient(driver, "m1", "a"), ShareClient(driver, "m2", "a")
    one.join()
    two.join()
    one.beat()
    assert len(one.partitions) < 3
    assert two.leave().member_epoch == -1
    one.beat()
    assert one.assigned == {A: frozenset({0, 1, 2})}


def test_silent_member_is_out_after_its_session(driver: ShareDriver) -> None:
    one, two = ShareClient(driver, "m1", "a"), ShareClient(driver, "m2", "a")
    one.join()
    two.join()
    for _ in range(9):
        driver.advance(5_000)
        one.beat()
    assert driver.share_group().members.keys() == {"m1"}
    assert one.assigned == {A: frozenset({0, 1, 2})}
    driver.advance(45_000)
    assert driver.share_group().state_name == "Empty"


def test_session_goes_on_after_the_shard_was_loaded(driver: ShareDriver) -> None:
    ShareClient(driver, "m", "a").join()
    driver.advance(40_000)
    driver.reload()
    driver.advance(44_999)
    assert not driver.share_group().is_empty
    driver.advance(1)
    assert driver.share_group().is_empty


def test_target_is_not_computed_more_often_than_the_group_wants() -> None:
    driver = ShareDriver(FakeTopics(a=2), config=GroupConfig(share_assignment_interval_ms=1_000))
    one, two = ShareClient(driver, "m1", "a"), ShareClient(driver, "m2", "a")
    one.join()
    assert one.assigned == {A: frozenset({0, 1})}  # at once, though the first target was empty
    two.join()
    assert two.assigned == {}
    driver.advance(1_000)
    two.beat()
    assert len(two.partitions) == 1


# --- what must be initialized -----------------------------------------------------------------


def test_partitions_are_initialized_before_they_are_given(driver: ShareDriver) -> None:
    response = driver.share_heartbeat(JOIN)
    assert response.assignment == {}
    initialization = response.initialization
    assert initialization is not None
    assert initialization.state_epoch == driver.share_group().epoch
    assert initialization.start_offsets == {(A, 0): -1, (A, 1): -1, (A, 2): -1}
    assert driver.share_group().state.initializing[A].partitions == {0, 1, 2}
    # Nobody else asks for them while that goes on.
    other = driver.share_heartbeat(replace(JOIN, member_id="other"))
    assert (other.assignment, other.initialization) == ({}, None)
    driver.initialize(initialization)
    assert driver.share_group().state.initializing == {}
    told = driver.share_heartbeat(ShareHeartbeat("g", "m", response.member_epoch))
    assert told.assignment
    assert told.initialization is None


def test_initialization_is_asked_for_again_after_a_crash(driver: ShareDriver) -> None:
    first = driver.share_heartbeat(JOIN)
    driver.reload()
    again = driver.share_heartbeat(ShareHeartbeat("g", "m", first.member_epoch))
    assert again.initialization is not None
    assert first.initialization is not None
    assert again.initialization.start_offsets == first.initialization.start_offsets


def test_initialization_is_asked_for_again_when_nothing_came_of_it(driver: ShareDriver) -> None:
    first = driver.share_heartbeat(JOIN)
    beat = ShareHeartbeat("g", "m", first.member_epoch)
    driver.advance(29_999)
    assert driver.share_heartbeat(beat).initialization is None
    driver.advance(1)
    retried = driver.share_heartbeat(beat).initialization
    assert retried is not None
    driver.apply(driver.groups.initialization_failed("g", list(retried.start_offsets)))
    # It may have the state all the same, so the group does not forget that it asked.
    assert driver.share_group().state.initializing[A].partitions == {0, 1, 2}
    assert driver.share_heartbeat(beat).initialization == retried


def test_initialization_leaves_out_what_was_initialized_or_deleted_since(
    driver: ShareDriver,
) -> None:
    wanted = driver.share_heartbeat(JOIN).initialization
    assert wanted is not None
    assert driver.groups.still_to_initialize(wanted) == wanted
    driver.initialize(wanted._replace(start_offsets={(A, 1): -1}))
    assert driver.groups.still_to_initialize(wanted).start_offsets.keys() == {(A, 0), (A, 2)}
    driver.share_heartbeat(ShareHeartbeat("g", "m", -1))
    driver.apply(share_offsets.begin_delete_group(driver.groups, "g"))
    assert driver.groups.still_to_initialize(wanted).start_offsets == {}
    driver.apply(driver.shard.delete_group("g"))
    assert driver.groups.still_to_initialize(wanted).start_offsets == {}


def test_partitions_that_a_topic_gains_are_initialized_and_given(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "a")
    member.join()
    driver.topics.grow("a", 5)
    driver.apply(driver.shard.topics_changed(driver.topics, driver.now_ms))
    known = member.epoch
    told = member.beat()
    assert told.assignment == {A: frozenset(range(5))}
    assert driver.states.keys() == {("g", A, partition) for partition in range(5)}
    # Should this answer be lost, the member may still come with the epoch that it knows.
    member.epoch = known
    assert member.beat().member_epoch == told.member_epoch


def test_partitions_that_another_broker_initialized_are_given(driver: ShareDriver) -> None:
    """Apache Kafka leaves it to a later heartbeat to assign them."""
    response = driver.share_heartbeat(JOIN)
    state = StatePartitions(initialized={A: NamedPartitions("a", frozenset({0, 1, 2}))})
    driver.apply(Result((state.record("g"),)))
    told = driver.share_heartbeat(ShareHeartbeat("g", "m", response.member_epoch))
    assert told.assignment == {A: frozenset({0, 1, 2})}


def test_topic_that_comes_later_is_given_when_it_is_there(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "later")
    assert member.join().assignment == {}
    later = driver.topics.create("later", 1)
    member.beat()
    assert member.assigned == {later: frozenset({0})}


def test_topic_that_is_gone_is_neither_given_nor_remembered(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "a", "b")
    member.join()
    driver.topics.delete("a")
    driver.apply(driver.shard.topics_changed(driver.topics, driver.now_ms))
    driver.apply(driver.shard.topic_deleted("a", A))
    assert member.beat().assignment == {B: frozenset({0, 1})}
    assert driver.share_group().state.topic_ids() == {B}
    # One of the same name is another topic.
    new = driver.topics.create("a", 1)
    assert member.beat().assignment == {B: frozenset({0, 1}), new: frozenset({0})}


def test_topic_that_went_while_it_was_initialized_is_not_remembered(driver: ShareDriver) -> None:
    initialization = driver.share_heartbeat(JOIN).initialization
    assert initialization is not None
    driver.topics.delete("a")
    driver.apply(driver.shard.topic_deleted("a", A))
    driver.initialize(initialization)
    assert driver.share_group().state.topic_ids() == set()


def test_epoch_rests_when_nothing_changes(driver: ShareDriver) -> None:
    one, two = ShareClient(driver, "m1", "a"), ShareClient(driver, "m2", "a", "b")
    for member in (one, two, one, two):
        member.join() if not member.epoch else member.beat()
    epoch, written = driver.share_group().epoch, len(driver.log)
    for _ in range(3):
        one.beat()
        two.beat()
    assert (driver.share_group().epoch, len(driver.log)) == (epoch, written)
    driver.reload()
    one.beat()
    assert driver.share_group().epoch == epoch


def test_description_tells_of_epochs_and_members(driver: ShareDriver) -> None:
    member = ShareClient(driver, "m", "a")
    member.join()
    description = driver.groups.describe("g")
    assert (description.state, description.assignor) == ("Stable", "simple")
    assert description.group_epoch == description.assignment_epoch == member.epoch
    assert [m.member_id for m in description.members] == ["m"]
    assert description.members[0].assigned == member.assigned
    with pytest.raises(ApiError) as refused:
        driver.groups.describe("absent")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
