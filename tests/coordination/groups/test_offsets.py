"""Committed offsets: commit, fetch, delete, expire."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from millstream.coordination.group_records import NO_TOPIC_ID, OffsetCommitKey, OffsetCommitValue
from millstream.coordination.groups.group import OffsetCommitter
from millstream.coordination.groups.offsets import (
    CommitRequest,
    FetchedOffset,
    FetchRequest,
    PartitionCommit,
    TopicCommit,
    TopicFetch,
)
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.classic_harness import (
    SIMPLE,
    ClassicDriver,
    Client,
    commit,
    form_group,
    subscription,
)

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def fetch(
    driver: ClassicDriver, *partitions: int, topic_id: uuid.UUID = NO_TOPIC_ID
) -> list[FetchedOffset]:
    request = FetchRequest("g", (TopicFetch("orders", topic_id, partitions),))
    return list(driver.shard.fetch_offsets(request))


def offsets(driver: ClassicDriver) -> dict[tuple[str, int], int]:
    return {(k.topic, k.partition): v.offset for k, v in driver.shard.offsets.of_group("g")}


# --- commit and fetch


def test_committed_offset_comes_back_with_its_metadata() -> None:
    driver = ClassicDriver()
    assert commit(driver, 42, partition=1, metadata="so far") is ErrorCode.NONE
    assert fetch(driver, 0, 1) == [
        FetchedOffset("orders", 0),
        FetchedOffset("orders", 1, 42, 1, "so far"),
    ]
    everything = driver.shard.fetch_offsets(FetchRequest("g", None))
    assert everything == (FetchedOffset("orders", 1, 42, 1, "so far"),)


def test_group_without_offsets_has_none() -> None:
    driver = ClassicDriver()
    assert fetch(driver, 0) == [FetchedOffset("orders", 0)]
    assert driver.shard.fetch_offsets(FetchRequest("g", None)) == ()


def test_first_commit_makes_a_simple_group() -> None:
    driver = ClassicDriver()
    commit(driver, 1)
    group = driver.classic()
    assert (group.state_name, group.protocol_type) == ("Empty", "")


def test_commit_with_a_generation_needs_a_group() -> None:
    driver = ClassicDriver()
    for version, code in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
        with pytest.raises(ApiError) as error:
            commit(driver, 1, OffsetCommitter("m", 1, None, version))
        assert error.value.code is code


def test_commit_without_a_generation_is_refused_while_the_group_has_members() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    with pytest.raises(ApiError) as error:
        commit(driver, 1)
    assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    client.leave()
    assert commit(driver, 1) is ErrorCode.NONE


def test_too_long_metadata_is_refused_for_its_partition_alone() -> None:
    driver = ClassicDriver()
    topic_id = driver.topics.topic_id("orders") or NO_TOPIC_ID
    limit = driver.shard.context.settings.offset_metadata_max_bytes
    partitions = (
        PartitionCommit(0, 5, metadata="x" * (limit + 1)),
        PartitionCommit(1, 5, metadata="x" * limit),
        PartitionCommit(2, 5, metadata=None),
    )
    request = CommitRequest("g", SIMPLE, (TopicCommit("orders", topic_id, partitions),))
    outcomes = driver.apply(driver.shard.commit_offsets(request, driver.now_ms))
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert offsets(driver) == {("orders", 1): 5, ("orders", 2): 5}


def test_offset_of_a_topic_made_anew_is_not_the_old_one() -> None:
    driver = ClassicDriver()
    commit(driver, 42)
    assert fetch(driver, 0, topic_id=uuid.uuid4()) == [FetchedOffset("orders", 0)]
    known = driver.topics.topic_id("orders") or NO_TOPIC_ID
    assert fetch(driver, 0, topic_id=known)[0].offset == 42
    assert fetch(driver, 0)[0].offset == 42


# --- deletion


def delete(driver: ClassicDriver, topic: str, *partitions: int) -> list[ErrorCode]:
    outcomes = driver.apply(driver.shard.delete_offsets("g", [(topic, partitions)]))
    return [outcome.error for outcome in outcomes]


def test_offset_is_deleted() -> None:
    driver = ClassicDriver()
    commit(driver, 1, partition=0)
    commit(driver, 2, partition=1)
    assert delete(driver, "orders", 0, 2) == [ErrorCode.NONE, ErrorCode.NONE]
    assert offsets(driver) == {("orders", 1): 2}


def test_offset_of_a_topic_in_use_is_not_deleted() -> None:
    driver = ClassicDriver()
    driver.topics.create("payments", 1)
    client = Client(driver)
    form_group(driver, client)
    client.commit(1)
    commit(driver, 1, OffsetCommitter(client.member_id, 1, None, 9), topic="payments")
    assert delete(driver, "orders", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert delete(driver, "payments", 0) == [ErrorCode.NONE]
    assert offsets(driver) == {("orders", 0): 1}


def test_offset_of_a_group_that_is_not_of_consumers_is_not_deleted_while_it_has_members() -> None:
    driver = ClassicDriver()
    form_group(driver, Client(driver, protocol_type="connect"))
    with pytest.raises(ApiError) as error:
        delete(driver, "orders", 0)
    assert error.value.code is ErrorCode.NON_EMPTY_GROUP


def test_offset_of_a_missing_group_is_not_deleted() -> None:
    with pytest.raises(ApiError) as error:
        delete(ClassicDriver(), "orders", 0)
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_deleted_topic_go_and_those_of_its_successor_stay() -> None:
    driver = ClassicDriver()
    commit(driver, 1, partition=0)
    old_id = driver.topics.topic_id("orders") or NO_TOPIC_ID
    driver.topics.delete("orders")
    driver.topics.create("orders", 3)
    commit(driver, 2, partition=1)
    driver.apply(driver.shard.topic_deleted("orders", old_id))
    assert offsets(driver) == {("orders", 1): 2}


def test_offset_committed_without_a_topic_id_goes_with_the_topic() -> None:
    driver = ClassicDriver()
    key = OffsetCommitKey("g", "orders", 0)
    driver.shard.offsets.replay(key, OffsetCommitValue(1, "", 0))
    driver.apply(driver.shard.topic_deleted("orders", uuid.uuid4()))
    assert offsets(driver) == {}


# --- expiry


def expire(driver: ClassicDriver, after_ms: int) -> None:
    """Let time pass and look for expired offsets, as the runtime's timer does."""
    driver.reload()
    driver.advance(after_ms + driver.shard.context.settings.offsets_retention_check_interval_ms)


def test_simple_groups_offset_expires_after_its_commit() -> None:
    driver = ClassicDriver()
    commit(driver, 1, partition=0)
    driver.now_ms += 6 * DAY_MS
    commit(driver, 2, partition=1)
    expire(driver, DAY_MS)
    assert offsets(driver) == {("orders", 1): 2}
    expire(driver, 6 * DAY_MS)
    assert "g" not in driver.shard.groups


def test_empty_groups_offset_expires_after_the_group_became_empty() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    client.commit(1)
    driver.now_ms += WEEK_MS - 1_000  # the member kept its session alive all week
    client.leave()
    expire(driver, WEEK_MS - 10 * 60_000 - 1)
    assert offsets(driver) == {("orders", 0): 1}
    expire(driver, 10 * 60_000)
    assert "g" not in driver.shard.groups


def test_offset_of_a_subscribed_topic_does_not_expire() -> None:
    driver = ClassicDriver()
    driver.topics.create("payments", 1)
    client = Client(driver, protocols=[("range", subscription("orders"))])
    form_group(driver, client)
    client.commit(1)
    commit(driver, 1, OffsetCommitter(client.member_id, 1, None, 9), topic="payments")
    group = driver.classic()
    now_ms = driver.now_ms + WEEK_MS
    records, none_left = driver.shard.offsets.expire(group, retention_ms=WEEK_MS, now_ms=now_ms)
    assert [record.key.topic for record in records] == ["payments"]
    assert not none_left


def test_offset_with_its_own_expiry_obeys_it() -> None:
    driver = ClassicDriver()
    commit(driver, 1, partition=0, retention_ms=DAY_MS)
    commit(driver, 2, partition=1)
    expire(driver, DAY_MS)
    assert offsets(driver) == {("orders", 1): 2}


def test_group_about_to_be_joined_is_not_removed() -> None:
    driver = ClassicDriver()
    client = Client(driver, session_timeout_ms=1_800_000)
    client._send_join()
    driver.apply(driver.shard.handle_timer(("shard", "expire-offsets"), driver.now_ms))
    assert "g" in driver.shard.groups


# --- in transactions


def commit_in_transaction(
    driver: ClassicDriver, offset: int, *, producer_id: int = 7, **committer: object
) -> None:
    """TxnOffsetCommit for partition 0 of orders, its records pending as in the runtime."""
    by = OffsetCommitter("", -1, None, 3, is_transactional=True)
    request = CommitRequest(
        "g",
        replace(by, **committer),  # type: ignore[arg-type]
        (TopicCommit("orders", NO_TOPIC_ID, (PartitionCommit(0, offset),)),),
    )
    for record in driver.shard.commit_offsets(request, driver.now_ms).records:
        driver.shard.replay_pending(record, producer_id)


def stable(driver: ClassicDriver) -> list[FetchedOffset]:
    topics = (TopicFetch("orders", NO_TOPIC_ID, (0, 1)),)
    return list(driver.shard.fetch_offsets(FetchRequest("g", topics, require_stable=True)))


def test_pending_offset_is_unstable_until_its_transaction_ends() -> None:
    driver = ClassicDriver()
    commit(driver, 5)
    commit_in_transaction(driver, 9)
    assert [it.offset for it in fetch(driver, 0)] == [5]
    unstable, other = stable(driver)
    assert (unstable.offset, unstable.error) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert other.error is ErrorCode.NONE
    everything = driver.shard.fetch_offsets(FetchRequest("g", None, require_stable=True))
    assert [it.error for it in everything] == [ErrorCode.UNSTABLE_OFFSET_COMMIT]
    driver.shard.replay_end_transaction(7, committed=True)
    assert [(it.offset, it.error) for it in stable(driver)] == [
        (9, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
    ]


def test_aborted_offset_leaves_the_one_before() -> None:
    driver = ClassicDriver()
    commit(driver, 5)
    commit_in_transaction(driver, 9)
    driver.shard.replay_end_transaction(7, committed=False)
    assert offsets(driver) == {("orders", 0): 5}


def test_group_of_pending_offsets_only_does_not_expire() -> None:
    driver = ClassicDriver()
    driver.reload()  # sets the timer of the expiry
    commit_in_transaction(driver, 9)
    assert driver.shard.groups["g"].is_empty
    driver.advance(2 * WEEK_MS)
    assert "g" in driver.shard.groups
    driver.shard.replay_end_transaction(7, committed=False)
    driver.advance(2 * WEEK_MS)
    assert "g" not in driver.shard.groups


def test_offset_with_a_pending_one_does_not_expire() -> None:
    driver = ClassicDriver()
    driver.reload()  # sets the timer of the expiry
    commit(driver, 5)
    commit_in_transaction(driver, 9)
    driver.advance(2 * WEEK_MS)
    assert offsets(driver) == {("orders", 0): 5}


def test_deleting_a_group_deletes_what_is_pending() -> None:
    driver = ClassicDriver()
    commit(driver, 5, partition=1)
    commit_in_transaction(driver, 9)
    driver.apply(driver.shard.delete_group("g"))
    driver.shard.replay_end_transaction(7, committed=True)
    assert offsets(driver) == {}
    assert "g" not in driver.shard.groups


def test_deleting_an_offset_or_its_topic_deletes_what_is_pending() -> None:
    for delete in ("offset", "topic"):
        driver = ClassicDriver()
        commit(driver, 5, partition=1)
        commit_in_transaction(driver, 9)
        if delete == "offset":
            driver.apply(driver.shard.delete_offsets("g", [("orders", (0,))]))
        else:
            driver.apply(driver.shard.topic_deleted("orders", uuid.uuid4()))
        assert [it.error for it in stable(driver)] == [ErrorCode.NONE, ErrorCode.NONE]
        driver.shard.replay_end_transaction(7, committed=True)
        assert ("orders", 0) not in offsets(driver)


def test_transaction_needs_the_generation_of_its_member() -> None:
    driver = ClassicDriver()
    form_group(driver, Client(driver))
    with pytest.raises(ApiError) as error:
        commit_in_transaction(driver, 9, generation_or_epoch=99, member_id="nobody")
    assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    commit_in_transaction(driver, 9)  # before v3 nobody says who he is


def test_transaction_for_a_group_that_is_gone_must_not_name_a_generation() -> None:
    driver = ClassicDriver()
    with pytest.raises(ApiError) as error:
        commit_in_transaction(driver, 9, generation_or_epoch=1, member_id="m")
    assert error.value.code is ErrorCode.ILLEGAL_GENERATION
