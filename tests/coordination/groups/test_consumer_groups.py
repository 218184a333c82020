"""Heartbeats of the consumer protocol, one rule after the other."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millstream.config.groups import GroupConfig
from millstream.coordination.group_records import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from millstream.coordination.groups.consumer_member import MemberState
from millstream.coordination.groups.consumer_messages import ConsumerHeartbeat
from millstream.coordination.groups.group import GroupSettings
from millstream.coordination.result import CoordinatorRecord, Result
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, Member, ShardDriver, settle

FOO, BAR = UUID(int=1), UUID(int=2)


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver(FakeTopics(foo=6, bar=3))


def refused(code: ErrorCode, send: Any, *args: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        send(*args, **fields)
    assert caught.value.code is code
    return caught.value


# --- joining and moving partitions ---------------------------------------------------------------


def test_first_member_gets_everything_at_once(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo", "bar")
    response = member.join()
    assert (response.member_id, response.member_epoch) == ("a", 1)
    assert response.heartbeat_interval_ms == 5_000
    assert response.assignment == {FOO: frozenset(range(6)), BAR: frozenset(range(3))}
    assert driver.group().state_name == "Stable"


def test_second_member_waits_until_the_first_has_given_up(driver: ShardDriver) -> None:
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    assert second.join().assignment == {}
    assert driver.group().members["b"].state is MemberState.UNRELEASED_PARTITIONS

    told = first.beat()
    assert told.assignment == {FOO: frozenset({0, 1, 2})}
    assert told.member_epoch == 1, "it keeps its epoch until it has given up the rest"
    assert second.beat().assignment is None, "nothing is free yet"

    assert first.acknowledge().member_epoch == 2
    assert second.beat().assignment == {FOO: frozenset({3, 4, 5})}
    assert driver.group().state_name == "Stable"


def test_heartbeat_that_still_owns_what_it_must_give_up_does_not_advance(
    driver: ShardDriver,
) -> None:
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    first.beat()
    assert first.beat(owned={FOO: frozenset({0, 1, 2, 5})}).member_epoch == 1
    assert driver.group().members["a"].state is MemberState.UNREVOKED_PARTITIONS


def test_idle_heartbeat_writes_nothing_and_extends_the_session(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    written = len(driver.log)
    driver.advance(40_000)
    response = member.beat()
    assert response.assignment is None
    assert len(driver.log) == written
    driver.advance(40_000)
    assert "a" in driver.group().members


def test_full_heartbeat_is_told_the_whole_assignment_again(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    again = member.beat(rebalance_timeout_ms=60_000, topic_names=("foo",), owned={})
    assert again.assignment == {FOO: frozenset(range(6))}


def test_member_without_topics_is_in_the_group_and_owns_nothing(driver: ShardDriver) -> None:
    member = Member(driver, "a")
    response = member.join()
    assert response.member_epoch > 0
    assert response.assignment == {}
    assert driver.group().state_name == "Stable"


def test_member_that_changes_its_topics_gives_up_the_old_ones_first(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    member.acknowledge()
    told = member.beat(topic_names=("bar",), owned=member.owned)
    assert told.assignment == {}
    member.acknowledge()
    assert member.assigned == {BAR: frozenset(range(3))}


def test_members_preferred_assignor_is_the_one_most_ask_for(driver: ShardDriver) -> None:
    members = [
        Member(driver, "a", "foo", "bar", server_assignor="range"),
        Member(driver, "b", "foo", "bar", server_assignor="range"),
        Member(driver, "c", "foo", "bar", server_assignor="uniform"),
    ]
    for member in members:
        member.join()
    settle(*members)
    assert driver.shard.consumer_groups.describe("g").assignor == "range"
    assert members[0].assigned == {FOO: frozenset({0, 1}), BAR: frozenset({0})}


def test_group_without_wishes_uses_the_first_assignor_of_the_broker() -> None:
    settings = GroupSettings(group_consumer_assignors=("range", "uniform"))
    driver = ShardDriver(FakeTopics(foo=6), settings)
    Member(driver, "a", "foo").join()
    assert driver.shard.consumer_groups.describe("g").assignor == "range"


# --- epochs and fencing --------------------------------------------------------------------------


def test_heartbeat_with_a_wrong_epoch_is_fenced(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    member.epoch = 5
    assert "greater" in str(refused(ErrorCode.FENCED_MEMBER_EPOCH, member.beat))


def test_heartbeat_with_the_previous_epoch_is_accepted_when_the_answer_was_lost(
    driver: ShardDriver,
) -> None:
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    first.beat()
    first.acknowledge()
    assert first.epoch == 2
    first.epoch = 1
    assert first.beat(owned={FOO: frozenset({0, 1})}).member_epoch == 2
    first.epoch = 1
    refused(ErrorCode.FENCED_MEMBER_EPOCH, first.beat, owned={FOO: frozenset({5})})
    refused(ErrorCode.FENCED_MEMBER_EPOCH, first.beat)


def test_unknown_members_and_groups_are_refused(driver: ShardDriver) -> None:
    Member(driver, "a", "foo").join()
    stranger = Member(driver, "x", "foo")
    stranger.epoch = 1
    refused(ErrorCode.UNKNOWN_MEMBER_ID, stranger.beat)
    refused(ErrorCode.UNKNOWN_MEMBER_ID, stranger.leave)
    elsewhere = Member(driver, "a", "foo", group_id="nowhere")
    elsewhere.epoch = 1
    refused(ErrorCode.GROUP_ID_NOT_FOUND, elsewhere.beat)
    refused(ErrorCode.GROUP_ID_NOT_FOUND, elsewhere.leave)


def test_full_group_takes_nobody_new_but_its_own_members_back() -> None:
    settings = GroupSettings(group_consumer_max_size=1)
    driver = ShardDriver(FakeTopics(foo=2), settings)
    member = Member(driver, "a", "foo")
    member.join()
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, Member(driver, "b", "foo").join)
    assert member.join().assignment == {FOO: frozenset({0, 1})}


def test_member_without_an_id_is_given_one_in_version_0(driver: ShardDriver) -> None:
    response = Member(driver, "", "foo", api_version=0).join()
    assert response.member_id == "given-1"
    assert "given-1" in driver.group().members


# --- leaving and time-outs -----------------------------------------------------------------------


def test_leaving_member_frees_its_partitions(driver: ShardDriver) -> None:
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    second.join()
    settle(first, second)
    assert second.leave().member_epoch == -1
    settle(first)
    assert first.assigned == {FOO: frozenset(range(6))}
    first.leave()
    assert driver.group().state_name == "Empty"
    assert driver.timers.keys() == set(), "who left has no timers"


def test_silent_member_is_fenced_after_its_session(driver: ShardDriver) -> None:
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    second.join()
    settle(first, second)
    driver.advance(44_000)
    first.beat()
    driver.advance(2_000)
    assert driver.group().members.keys() == {"a"}
    settle(first)
    assert first.assigned == {FOO: frozenset(range(6))}
    refused(ErrorCode.UNKNOWN_MEMBER_ID, second.beat)


def test_session_and_heartbeat_follow_the_groups_own_settings() -> None:
    config = GroupConfig(consumer_session_timeout_ms=50_000, consumer_heartbeat_interval_ms=7_000)
    driver = ShardDriver(FakeTopics(foo=1), config=config)
    assert Member(driver, "a", "foo").join().heartbeat_interval_ms == 7_000
    driver.advance(49_999)
    assert driver.group().members
    driver.advance(1)
    assert not driver.group().members


def test_member_that_gives_up_nothing_within_its_rebalance_timeout_is_fenced(
    driver: ShardDriver,
) -> None:
    first = Member(driver, "a", "foo", rebalance_timeout_ms=10_000)
    second = Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    first.beat()
    driver.advance(9_000)
    first.beat(owned=first.owned)
    assert "a" in driver.group().members
    driver.advance(1_000)
    assert driver.group().members.keys() == {"b"}
    settle(second)
    assert second.assigned == {FOO: frozenset(range(6))}


def test_member_that_gave_up_in_time_is_not_fenced(driver: ShardDriver) -> None:
    first = Member(driver, "a", "foo", rebalance_timeout_ms=10_000)
    second = Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    first.beat()
    first.acknowledge()
    driver.advance(20_000)
    assert driver.group().members.keys() == {"a", "b"}


def test_reloaded_group_times_out_those_who_do_not_come_back(driver: ShardDriver) -> None:
    first = Member(driver, "a", "foo", rebalance_timeout_ms=10_000)
    second = Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    first.beat()
    driver.reload()
    driver.advance(10_000)
    assert driver.group().members.keys() == {"b"}, "it still has to give up partitions"
    driver.advance(35_000)
    assert driver.group().state_name == "Empty"


# --- static members ------------------------------------------------------------------------------


def test_static_member_finds_its_partitions_when_it_comes_back(driver: ShardDriver) -> None:
    first = Member(driver, "a", "foo", instance_id="one")
    second = Member(driver, "b", "foo", instance_id="two")
    first.join()
    second.join()
    settle(first, second)
    had, epoch = first.assigned, driver.group().epoch
    assert first.leave(epoch=-2).member_epoch == -2
    assert driver.group().members["a"].epoch == -2
    returned = Member(driver, "a2", "foo", instance_id="one")
    assert returned.join().assignment == had
    assert driver.group().epoch == epoch, "nobody else has to move"
    assert driver.group().members.keys() == {"a2", "b"}


def test_static_member_that_stays_away_is_fenced(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo", instance_id="one")
    member.join()
    member.leave(epoch=-2)
    driver.advance(45_000)
    assert driver.group().state_name == "Empty"


def test_instance_id_in_use_is_refused(driver: ShardDriver) -> None:
    first = Member(driver, "a", "foo", instance_id="one")
    first.join()
    rival = Member(driver, "b", "foo", instance_id="one")
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, rival.join)
    rival.epoch = 1
    refused(ErrorCode.FENCED_INSTANCE_ID, rival.beat)
    refused(ErrorCode.FENCED_INSTANCE_ID, rival.leave)
    stranger = Member(driver, "c", "foo", instance_id="three")
    stranger.epoch = 1
    refused(ErrorCode.UNKNOWN_MEMBER_ID, stranger.beat)
    first.leave()
    assert driver.group().is_empty


# --- topics --------------------------------------------------------------------------------------


def test_new_partitions_and_topics_are_assigned_with_the_next_heartbeat(
    driver: ShardDriver,
) -> None:
    member = Member(driver, "a", "foo", "later")
    member.join()
    driver.topics.grow("foo", 8)
    later = driver.topics.create("later", 2)
    settle(member)
    assert member.assigned == {FOO: frozenset(range(8)), later: frozenset({0, 1})}
    epoch = driver.group().epoch
    driver.topics.create("unrelated", 1)
    settle(member)
    assert driver.group().epoch == epoch, "not every topic matters"


def test_deleted_topic_is_taken_from_its_owner(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo", "bar")
    member.join()
    driver.topics.delete("bar")
    settle(member)
    assert member.assigned == {FOO: frozenset(range(6))}


def test_change_of_topics_while_nobody_led_the_group_is_noticed(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    driver.topics.grow("foo", 7)
    driver.reload()
    settle(member)
    assert member.assigned == {FOO: frozenset(range(7))}


def test_reloaded_group_does_not_rebalance_for_nothing(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    member.acknowledge()
    driver.reload(compacted=True)
    written = len(driver.log)
    assert member.beat().member_epoch == 1
    assert len(driver.log) == written


def test_legacy_record_of_partitions_is_removed_with_the_next_epoch(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo")
    member.join()
    key = ConsumerGroupPartitionMetadataKey("g")
    value = ConsumerGroupPartitionMetadataValue(())
    driver.apply(Result((CoordinatorRecord(key, value),)))
    assert driver.group().has_legacy_metadata
    driver.topics.grow("foo", 7)
    member.beat()
    assert not driver.group().has_legacy_metadata


# --- regular expressions -------------------------------------------------------------------------


def test_regex_subscription_matches_whole_names(driver: ShardDriver) -> None:
    driver.topics.create("foobar", 1)
    member = Member(driver, "a", topic_regex="foo|b.r")
    assert member.join().assignment == {FOO: frozenset(range(6)), BAR: frozenset(range(3))}
    assert driver.group().resolved["foo|b.r"].topics == {"foo", "bar"}


def test_regex_sees_topics_that_come_later(driver: ShardDriver) -> None:
    member = Member(driver, "a", topic_regex="new-.*")
    assert member.join().assignment == {}
    new = driver.topics.create("new-1", 2)
    driver.advance(10_000)
    settle(member)
    assert member.assigned == {new: frozenset({0, 1})}
    driver.topics.delete("new-1")
    driver.advance(10_000)
    settle(member)
    assert member.assigned == {}
    assert driver.group().resolved["new-.*"].topics == frozenset()


def test_bad_regex_is_refused_and_changes_nothing(driver: ShardDriver) -> None:
    error = refused(ErrorCode.INVALID_REGULAR_EXPRESSION, Member(driver, "a", topic_regex="(").join)
    assert "`(`" in str(error)
    assert driver.log == []


def test_bad_regex_of_one_member_does_not_keep_others_from_new_topics(driver: ShardDriver) -> None:
    member = Member(driver, "a", topic_regex="new-.*")
    member.join()
    new = driver.topics.create("new-1", 1)
    driver.advance(10_000)
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, Member(driver, "b", topic_regex="(").join)
    settle(member)
    assert member.assigned == {new: frozenset({0})}


def test_empty_regex_unsubscribes_and_forgets_the_expression(driver: ShardDriver) -> None:
    member = Member(driver, "a", topic_regex="foo")
    member.join()
    member.acknowledge()
    member.beat(topic_regex="", owned=member.owned)
    settle(member)
    assert member.assigned == {}
    assert driver.group().resolved == {}


def test_names_and_regex_of_one_member_add_up(driver: ShardDriver) -> None:
    member = Member(driver, "a", "foo", topic_regex="b.*")
    assert member.join().assignment == {FOO: frozenset(range(6)), BAR: frozenset(range(3))}


def test_regex_is_kept_while_anyone_uses_it(driver: ShardDriver) -> None:
    first, second = Member(driver, "a", topic_regex="foo"), Member(driver, "b", topic_regex="foo")
    first.join()
    second.join()
    settle(first, second)
    first.leave()
    assert driver.group().resolved.keys() == {"foo"}
    second.leave()
    assert driver.group().resolved == {}


# --- how often assignments are computed ----------------------------------------------------------


def test_assignments_are_put_off_within_the_interval_and_made_up_by_a_timer() -> None:
    driver = ShardDriver(FakeTopics(foo=4), config=GroupConfig())
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    driver.advance(100)
    assert second.join().assignment == {}
    assert driver.group().assignment_epoch == 1
    assert driver.group().state_name == "Assigning"
    driver.advance(900)
    assert driver.group().assignment_epoch == 2, "nobody had to send a heartbeat"
    settle(first, second)
    assert [len(m.partitions) for m in (first, second)] == [2, 2]


# --- description ---------------------------------------------------------------------------------


def test_description_shows_epochs_and_what_is_yet_to_be_given_up(driver: ShardDriver) -> None:
    first, second = Member(driver, "a", "foo"), Member(driver, "b", "foo")
    first.join()
    first.acknowledge()
    second.join()
    first.beat()
    description = driver.shard.consumer_groups.describe("g")
    assert (description.group_epoch, description.assignment_epoch) == (2, 2)
    assert description.state == "Reconciling"
    shown = {member.member.member_id: member for member in description.members}
    assert shown["a"].assigned == {FOO: frozenset(range(6))}
    assert shown["a"].target == {FOO: frozenset({0, 1, 2})}
    assert shown["b"].target == {FOO: frozenset({3, 4, 5})}
    refused(ErrorCode.GROUP_ID_NOT_FOUND, driver.shard.consumer_groups.describe, "nope")


def test_group_epoch_only_grows_when_members_come_and_go(driver: ShardDriver) -> None:
    seen = []
    for name in ("a", "b", "c"):
        Member(driver, name, "foo").join()
        seen.append(driver.group().epoch)
    driver.heartbeat(ConsumerHeartbeat("g", "b", -1))
    seen.append(driver.group().epoch)
    assert seen == sorted(set(seen))


def test_deleted_group_is_gone_with_all_its_records(driver: ShardDriver) -> None:
    member = Member(driver, "a", topic_regex="foo")
    member.join()
    refused(ErrorCode.NON_EMPTY_GROUP, driver.shard.delete_group, "g")
    member.leave()
    driver.apply(driver.shard.delete_group("g"))
    assert "g" not in driver.shard.groups
    driver.reload(compacted=True)
    assert "g" not in driver.shard.groups
