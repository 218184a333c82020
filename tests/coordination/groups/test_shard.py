"""The shard: which group an event reaches, what is created, listed, described, deleted."""

from __future__ import annotations

import pytest

from millstream.coordination.group_records import GroupMetadataKey
from millstream.coordination.groups.classic_messages import LeavingMember
from millstream.coordination.groups.group import GroupKind, GroupOverview
from millstream.coordination.groups.shard import EXPIRY_TIMER
from millstream.coordination.result import SetTimer
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.classic_harness import (
    INITIAL_DELAY_MS,
    ClassicDriver,
    Client,
    commit,
    form_group,
    leave,
)
from tests.coordination.groups.consumer_harness import Member


def test_first_join_makes_the_group_known_in_the_log() -> None:
    driver = ClassicDriver()
    Client(driver)._send_join()
    driver.reload()
    assert driver.classic().is_empty


def test_group_whose_first_join_is_refused_is_not_made() -> None:
    driver = ClassicDriver()
    with pytest.raises(ApiError):
        Client(driver, protocols=[]).send_join()
    assert (driver.shard.groups, driver.log) == ({}, [])


def test_requests_to_a_missing_group_are_from_unknown_members() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    for attempt in (
        client.heartbeat,
        client.send_sync,
        lambda: leave(driver, LeavingMember("m", None)),
    ):
        with pytest.raises(ApiError) as error:
            attempt()
        assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_are_listed_with_state_and_type() -> None:
    driver = ClassicDriver()
    commit(driver, 1, group_id="simple")
    form_group(driver, Client(driver, group_id="classic"))
    Member(driver, "m", "orders", group_id="modern").join()
    listed = {overview.group_id: overview for overview in driver.shard.list_groups()}
    assert listed["simple"] == GroupOverview("simple", "", "Empty", GroupKind.CLASSIC)
    assert listed["classic"] == GroupOverview("classic", "consumer", "Stable", GroupKind.CLASSIC)
    assert listed["modern"].kind is GroupKind.CONSUMER


def test_description_of_a_rebalancing_group_leaves_out_metadata() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    stable = driver.shard.describe_group("g")
    assert (stable.state, stable.protocol) == ("Stable", "range")
    assert stable.members[0].assignment == client.member_id.encode()
    Client(driver, "b").send_join()
    rebalancing = driver.shard.describe_group("g")
    assert (rebalancing.state, rebalancing.protocol) == ("PreparingRebalance", "")
    assert [member.metadata for member in rebalancing.members] == [b"", b""]


def test_description_of_what_is_no_classic_group_is_refused() -> None:
    driver = ClassicDriver()
    Member(driver, "m", "orders", group_id="modern").join()
    for group_id in ("missing", "modern"):
        with pytest.raises(ApiError) as error:
            driver.shard.describe_group(group_id)
        assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_group_without_members_is_deleted_with_its_offsets() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    client.commit(1)
    with pytest.raises(ApiError) as error:
        driver.shard.delete_group("g")
    assert error.value.code is ErrorCode.NON_EMPTY_GROUP
    client.leave()
    driver.apply(driver.shard.delete_group("g"))
    with pytest.raises(ApiError) as error:
        driver.shard.delete_group("g")
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    driver.reload(compacted=True)
    assert driver.shard.groups == {}
    assert driver.shard.offsets.group_ids() == []


def test_group_deleted_is_dead_for_those_who_hold_it() -> None:
    driver = ClassicDriver()
    commit(driver, 1)
    group = driver.classic()
    driver.apply(driver.shard.delete_group("g"))
    assert group.state_name == "Dead"
    with pytest.raises(ApiError) as error:
        group.validate_offset_commit(Client(driver).committer)
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_empty_consumer_group_becomes_a_classic_one_when_a_classic_member_joins() -> None:
    driver = ClassicDriver()
    modern = Member(driver, "m", "orders")
    modern.join()
    commit_before = driver.shard.groups["g"]
    modern.leave()
    client = Client(driver)
    client.send_join()
    driver.advance(INITIAL_DELAY_MS)
    assert client.take_join().generation == 1
    assert commit_before is not driver.classic()
    driver.reload(compacted=True)
    assert driver.shard.groups["g"].kind is GroupKind.CLASSIC


def test_loaded_shard_looks_for_expired_offsets() -> None:
    driver = ClassicDriver()
    result = driver.shard.loaded(0)
    interval_ms = driver.shard.context.settings.offsets_retention_check_interval_ms
    assert result.timers == (SetTimer(EXPIRY_TIMER, interval_ms),)
    assert driver.shard.handle_timer(EXPIRY_TIMER, 7).timers == (
        SetTimer(EXPIRY_TIMER, 7 + interval_ms),
    )


def test_timer_of_a_group_that_is_gone_does_nothing() -> None:
    driver = ClassicDriver()
    result = driver.shard.handle_timer(("group", "gone", "session", "m"), 0)
    assert (result.records, result.timers) == ((), ())


def test_tombstone_of_an_unknown_group_is_ignored() -> None:
    driver = ClassicDriver()
    driver.log.append(driver.encode(GroupMetadataKey("never there"), None))
    driver.reload()
    assert driver.shard.groups == {}
