"""The leader's rules one by one; `test_leadership_simulation.py` has them all at once."""

from __future__ import annotations

import pytest

from millstream.broker.replicas.leadership import Leadership
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER, PendingAppend
from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode
from tests.broker.replicas.replicated import Entry, FakeLog

TWO = frozenset({1, 2})


class Leader:
    """A leadership over a fake log, and how often it has notified."""

    def __init__(
        self,
        *,
        followers: frozenset[int] = TWO,
        replica_count: int = 3,
        records: int = 0,
        flushed: int = 0,
        high_watermark: int = 0,
        **config: int,
    ) -> None:
        self.log = FakeLog(TopicConfig(**config))
        self.log.entries = [Entry(0, value) for value in range(records)]
        self.log.flushed_offset = flushed
        self.changes = 0
        self.led = Leadership(
            self.log,
            epoch=1,
            high_watermark=high_watermark,
            changed=self._changed,
            in_sync_followers=followers,
            replica_count=replica_count,
        )

    def _changed(self) -> None:
        self.changes += 1

    def append(self, acks: int, *, flush: bool = True) -> PendingAppend:
        offset = self.log.log_end_offset
        self.log.entries.append(Entry(self.led.epoch, offset))
        pending = PendingAppend(offset, offset + 1)
        self.led.appended(pending, 10, acks=acks, must_flush=flush and acks == ACKS_ALL)
        return pending

    def flush(self) -> bool:
        self.log.flushed_offset = self.log.log_end_offset
        return self.led.flushed()


def test_high_watermark_is_the_smallest_end_of_the_in_sync_set() -> None:
    leader = Leader()
    pending = leader.append(ACKS_ALL)
    leader.led.fetched(1, 1)
    leader.led.fetched(2, 1)
    assert leader.led.high_watermark == 0, "the leader itself has not flushed"
    leader.flush()
    assert leader.led.high_watermark == 1
    assert pending.is_done
    second = leader.append(ACKS_ALL)
    leader.flush()
    leader.led.fetched(1, 2)
    assert not second.is_done, "replica 2 does not have it yet"
    leader.led.fetched(2, 2)
    assert second.is_done
    assert leader.changes == 2


def test_acks_leader_is_answered_at_once_and_visible_when_the_followers_have_it() -> None:
    leader = Leader()
    assert leader.append(ACKS_LEADER).is_done
    assert leader.led.high_watermark == 0
    leader.led.fetched(1, 1)
    leader.led.fetched(2, 1)
    assert leader.led.high_watermark == 1


def test_acks_all_without_a_flush_waits_for_the_followers_alone() -> None:
    leader = Leader(followers=frozenset({1}), replica_count=2)
    pending = leader.append(ACKS_ALL, flush=False)
    assert not leader.led.needs_flush
    leader.led.fetched(1, 1)
    assert pending.is_done
    assert leader.log.flushed_offset == 0


def test_follower_out_of_sync_holds_nothing_back_and_joins_when_it_has_caught_up() -> None:
    leader = Leader(followers=frozenset({1}))
    leader.append(ACKS_LEADER)
    leader.led.fetched(1, 1)
    assert leader.led.high_watermark == 1
    leader.led.fetched(2, 0)
    assert not leader.led.may_join(2)
    leader.led.fetched(2, 1)
    assert leader.led.may_join(2)


def test_follower_must_reach_the_start_of_the_epoch_to_join() -> None:
    leader = Leader(followers=frozenset({1}), records=5, flushed=5, high_watermark=2)
    leader.led.fetched(2, 4)
    assert not leader.led.may_join(2)
    leader.led.fetched(2, 5)
    assert leader.led.may_join(2)


def test_both_sets_count_while_a_change_is_proposed() -> None:
    leader = Leader(followers=frozenset({1}))
    leader.led.propose_in_sync(frozenset({2}))
    leader.append(ACKS_LEADER)
    leader.led.fetched(1, 1)
    assert leader.led.high_watermark == 0
    leader.led.withdraw_proposal()
    assert leader.led.high_watermark == 1
    leader.append(ACKS_LEADER)
    leader.led.propose_in_sync(frozenset({1, 2}))
    leader.led.fetched(1, 2)
    leader.led.set_in_sync(frozenset({1, 2}))
    assert leader.led.high_watermark == 1
    leader.led.fetched(2, 2)
    assert leader.led.high_watermark == 2


def test_shrinking_the_in_sync_set_answers_what_waited_for_the_lost_member() -> None:
    leader = Leader()
    pending = leader.append(ACKS_ALL)
    leader.flush()
    leader.led.fetched(1, 1)
    leader.led.set_in_sync(frozenset({1}))
    assert pending.is_done
    assert pending.error is None


def test_below_min_insync_replicas_nothing_is_committed_and_waiting_appends_fail() -> None:
    leader = Leader(min_insync_replicas=2)
    flushed = leader.append(ACKS_ALL)
    leader.flush()
    unflushed = leader.append(ACKS_ALL)
    leader.led.set_in_sync(frozenset())
    for pending in (flushed, unflushed):
        assert pending.error is not None
        assert pending.error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with pytest.raises(ApiError) as refused:
        leader.led.check_in_sync()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    leader.flush()
    assert leader.append(ACKS_LEADER).is_done
    assert leader.led.high_watermark == 0
    leader.led.fetched(1, 3)
    leader.led.set_in_sync(frozenset({1}))
    assert leader.led.high_watermark == 3


def test_new_leader_commits_what_it_inherited_when_it_and_the_followers_have_flushed_it() -> None:
    leader = Leader(records=5, flushed=3, high_watermark=2)
    assert leader.led.needs_flush
    leader.led.fetched(1, 5)
    leader.led.fetched(2, 5)
    assert leader.led.high_watermark == 3
    assert leader.led.visible_bytes > 0
    leader.flush()
    assert leader.led.high_watermark == 5


def test_later_epoch_asks_the_followers_again() -> None:
    leader = Leader(followers=frozenset({1}))
    leader.append(ACKS_LEADER)
    leader.led.begin_epoch(2)
    leader.led.begin_epoch(1)
    assert (leader.led.epoch, leader.led.epoch_start_offset) == (2, 1)
    leader.append(ACKS_LEADER)
    assert leader.led.high_watermark == 0
    leader.led.fetched(1, 2)
    assert leader.led.high_watermark == 2


def test_resigning_fails_all_that_waits() -> None:
    leader = Leader()
    uncommitted = leader.append(ACKS_ALL)
    leader.flush()
    unflushed = leader.append(ACKS_ALL)
    again = PendingAppend(0, 1)
    assert not leader.led.duplicated(again, acks=ACKS_ALL, must_flush=True), "it is flushed"
    assert leader.led.waiting_count == 3
    leader.led.resign(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leads"))
    for pending in (uncommitted, unflushed, again):
        assert pending.error is not None
        assert pending.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.led.waiting_count == 0


def test_duplicate_waits_for_the_followers_too() -> None:
    leader = Leader(followers=frozenset({1}))
    leader.append(ACKS_LEADER)
    again = PendingAppend(0, 1)
    assert leader.led.duplicated(again, acks=ACKS_ALL, must_flush=True)
    leader.flush()
    assert not again.is_done
    leader.led.fetched(1, 1)
    assert again.is_done
    late = PendingAppend(0, 1)
    assert not leader.led.duplicated(late, acks=ACKS_ALL, must_flush=True)
    assert late.is_done


def test_flush_that_began_too_early_asks_for_another() -> None:
    leader = Leader(followers=frozenset(), replica_count=1)
    first, second = leader.append(ACKS_ALL), leader.append(ACKS_ALL)
    leader.log.flushed_offset = 1
    assert leader.led.flushed()
    assert (first.is_done, second.is_done) == (True, False)
    assert (leader.led.high_watermark, leader.led.visible_bytes) == (1, 10)
    assert not leader.flush()
    assert (leader.led.high_watermark, leader.led.visible_bytes) == (2, 20)
