"""A leader: high watermark, proposals, and who may join."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import RECOVERING, PartitionImage
from millstream.coordination.replication.leader import (
    IsrChange,
    LeaderReplica,
    diverging_epoch,
)
from millstream.storage.epochs import LeaderEpochs

LAG_MAX_MS = 1_000
EPOCHS = {1: 10, 2: 20, 3: 30}


def partition(isr: tuple[int, ...] = (1, 2, 3), epoch: int = 5, **more: int) -> PartitionImage:
    return PartitionImage((1, 2, 3), isr, 1, 7, epoch, **more)


def leader(
    isr: tuple[int, ...] = (1, 2, 3), *, end: int = 10, hw: int = 4, min_isr: int = 2, **more: int
) -> LeaderReplica:
    return LeaderReplica(
        1,
        partition(isr, **more),
        end=end,
        flushed_end=end,
        high_watermark=hw,
        min_insync_replicas=min_isr,
        lag_max_ms=LAG_MAX_MS,
        now_ms=0,
        active=EPOCHS,
    )


def fetch(it: LeaderReplica, follower: int, offset: int, now_ms: int = 0) -> bool:
    advanced = it.fetched(follower, EPOCHS[follower], offset, now_ms)
    it.answered(follower, now_ms)
    return advanced


def test_high_watermark_is_the_smallest_flushed_end_of_the_in_sync_set() -> None:
    it = leader()
    assert not fetch(it, 2, 10)
    assert it.high_watermark == 4
    assert fetch(it, 3, 8)
    assert it.high_watermark == 8
    it.appended(12)
    assert not it.flushed(12)
    assert fetch(it, 3, 12)
    assert it.high_watermark == 10


def test_high_watermark_waits_for_the_leaders_own_flush() -> None:
    it = leader()
    it.appended(12)
    fetch(it, 2, 12)
    fetch(it, 3, 12)
    assert it.high_watermark == 10
    assert it.flushed(12)
    assert it.high_watermark == 12


def test_high_watermark_does_not_move_back_when_an_old_fetch_arrives_late() -> None:
    it = leader()
    fetch(it, 2, 10)
    fetch(it, 3, 10)
    assert not fetch(it, 3, 6)
    assert it.high_watermark == 10


def test_high_watermark_stands_still_below_min_insync_replicas() -> None:
    it = leader((1,))
    assert not it.has_enough_replicas
    assert not it.flushed(10)
    assert it.high_watermark == 4
    fetch(it, 2, 10)
    change = it.tick(0)
    assert change is not None
    assert it.committed(partition((1, 2), 6))
    assert it.has_enough_replicas
    assert it.high_watermark == 10


def test_lone_leader_with_min_isr_one_shows_what_it_flushed() -> None:
    assert leader((1,), min_isr=1).high_watermark == 10


def test_proposed_member_holds_the_high_watermark_back_until_it_is_decided() -> None:
    it = leader((1, 2))
    fetch(it, 2, 10)
    fetch(it, 3, 10)
    assert it.high_watermark == 10
    assert it.tick(0) == IsrChange(7, 5, (1, 2, 3), (10, 20, 30))
    assert it.maximal_isr == (1, 2, 3)
    it.flushed(15)
    assert not fetch(it, 2, 15)
    assert it.high_watermark == 10


def test_member_to_be_removed_holds_the_high_watermark_back_until_it_is_decided() -> None:
    it = leader()
    it.flushed(15)
    fetch(it, 3, 8)
    assert it.tick(LAG_MAX_MS // 2) is None
    fetch(it, 2, 15, LAG_MAX_MS)
    assert it.tick(LAG_MAX_MS) is None
    change = it.tick(LAG_MAX_MS + 1)
    assert change is not None
    assert change.isr == (1, 2)
    assert it.high_watermark == 8
    assert it.tick(LAG_MAX_MS + 2) is None, "one change at a time"
    assert it.committed(partition((1, 2), 6))
    assert it.high_watermark == 15


def test_refused_proposal_ends_and_can_be_made_again() -> None:
    it = leader((1, 2))
    fetch(it, 2, 10)
    fetch(it, 3, 10)
    assert it.tick(0) is not None
    assert not it.candidates
    it.refused()
    assert it.maximal_isr == (1, 2)
    assert it.tick(0) is None
    fetch(it, 3, 10)
    assert it.tick(0) is not None


def test_state_of_the_metadata_that_is_not_newer_does_not_end_a_proposal() -> None:
    it = leader((1, 2))
    fetch(it, 3, 10)
    assert it.tick(0) is not None
    it.committed(partition((1, 2), 5))
    assert it.maximal_isr == (1, 2, 3)
    it.committed(partition((1, 2), 6))
    assert it.maximal_isr == (1, 2)


@pytest.mark.parametrize(
    ("offset", "hw", "is_candidate"),
    [(10, 4, True), (9, 4, False), (12, 12, True), (11, 12, False)],
)
def test_follower_joins_at_the_high_watermark_and_at_the_start_of_the_epoch(
    offset: int, hw: int, is_candidate: bool
) -> None:
    it = leader((1, 2))
    it.flushed(12)
    fetch(it, 2, hw)
    fetch(it, 3, offset)
    assert (3 in it.candidates) is is_candidate


def test_follower_that_is_not_active_does_not_join() -> None:
    it = leader((1, 2))
    it.brokers_changed({1: 10, 2: 20})
    fetch(it, 3, 10)
    assert it.tick(0) is None
    it.brokers_changed(EPOCHS)
    fetch(it, 3, 10)
    assert it.tick(0) is not None


def test_follower_of_another_incarnation_than_registered_does_not_join() -> None:
    it = leader((1, 2))
    it.fetched(3, 31, 10, 0)
    assert it.tick(0) is None
    it.brokers_changed({**EPOCHS, 3: 31})
    it.fetched(3, 31, 10, 0)
    change = it.tick(0)
    assert change is not None
    assert change.broker_epochs == (10, -1, 31)


def test_fetch_of_an_earlier_incarnation_does_not_count() -> None:
    it = leader((1, 2))
    assert it.fetched(2, 21, 6, 0)
    assert not it.fetched(2, 20, 10, 0)
    assert it.high_watermark == 6


def test_fetch_of_a_broker_without_a_replica_does_not_count() -> None:
    assert not leader().fetched(9, 90, 10, 0)


def test_follower_about_to_join_holds_the_high_watermark_back() -> None:
    it = leader((1,), min_isr=1)
    fetch(it, 2, 10)
    it.flushed(12)
    assert it.high_watermark == 10, "else it could chase the high watermark for ever"
    it.brokers_changed({1: 10, 3: 30})
    it.flushed(13)
    assert it.high_watermark == 13


def test_follower_that_stopped_before_it_joined_is_waited_for_only_so_long() -> None:
    it = leader((1,), min_isr=1)
    fetch(it, 2, 10)
    assert it.tick(0) is not None
    it.refused()
    for now_ms in (500, 1_000):
        it.tick(now_ms)
        it.flushed(12)
    assert it.high_watermark == 10
    it.tick(1_001)
    it.flushed(13)
    assert it.high_watermark == 13


def test_member_that_does_not_fetch_after_the_election_is_removed_after_the_lag() -> None:
    it = leader()
    assert it.tick(LAG_MAX_MS // 2) is None
    fetch(it, 2, 10, LAG_MAX_MS)
    assert it.tick(LAG_MAX_MS) is None
    change = it.tick(LAG_MAX_MS + 1)
    assert change is not None
    assert change.isr == (1, 2)


def test_pause_of_the_leader_is_not_blamed_on_followers() -> None:
    it = leader()
    for follower in (2, 3):
        fetch(it, follower, 10)
    it.flushed(20)
    assert it.tick(500) is None
    assert it.tick(60_000) is None
    change = it.tick(60_501)
    assert change is not None
    assert change.isr == (1,)


def test_recovering_leader_first_ends_its_recovery() -> None:
    it = leader((1,), min_isr=1, leader_recovery_state=RECOVERING)
    fetch(it, 2, 10)
    change = it.tick(0)
    assert change is not None
    assert change.isr == (1,)
    it.committed(partition((1,), 6))
    fetch(it, 2, 10)
    change = it.tick(0)
    assert change is not None
    assert change.isr == (1, 2)


def test_replicas_that_are_added_and_removed_are_followed_and_forgotten() -> None:
    it = leader()
    it.committed(PartitionImage((1, 2, 4), (1, 2), 1, 7, 6))
    assert it.is_replica(4)
    assert not it.fetched(3, 30, 10, 0)
    it.fetched(4, 40, 10, 0)
    assert (it.end_of(4), it.end_of(3)) == (10, -1)


def test_settings_take_effect_at_once() -> None:
    it = leader((1,))
    assert it.settings_changed(1, LAG_MAX_MS)
    assert it.high_watermark == 10


def test_divergence_is_found_by_epochs() -> None:
    epochs = LeaderEpochs("/log")
    for epoch, start in ((1, 0), (4, 10), (7, 20)):
        epochs.assign(epoch, start)
    assert diverging_epoch(epochs, 25, -1, 9) is None
    assert diverging_epoch(epochs, 25, 4, 20) is None
    assert diverging_epoch(epochs, 25, 4, 22) == (4, 20)
    assert diverging_epoch(epochs, 25, 5, 22) == (4, 20)
    assert diverging_epoch(epochs, 25, 7, 26) == (7, 25)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("fetch"), st.sampled_from((2, 3))),
        st.tuples(st.just("late fetch"), st.sampled_from((2, 3))),
        st.tuples(st.just("tick"), st.integers(1, 900)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("refuse"), st.just(0)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_high_watermark_is_flushed_on_every_possible_in_sync_set(
    events: list[tuple[str, int]],
) -> None:
    """Whatever happens: it only rises, and each member of both sets has flushed what is below."""
    it = leader()
    now_ms, ends, change = 0, {1: 10, 2: 4, 3: 4}, None
    for kind, number in events:
        before = it.high_watermark
        if kind == "append":
            it.appended(it.end + number)
        elif kind == "flush":
            ends[1] = it.end
            it.flushed(it.end)
        elif kind == "fetch":
            ends[number] = min(it.end, ends[number] + 2)
            fetch(it, number, ends[number], now_ms)
        elif kind == "late fetch":
            fetch(it, number, ends[number] - 1, now_ms)
        elif kind == "tick":
            now_ms += number
            change = it.tick(now_ms) or change
        elif change is not None:
            if kind == "commit":
                it.committed(partition(change.isr, change.partition_epoch + 1))
            else:
                it.refused()
            change = None
        assert it.high_watermark >= before
        if it.high_watermark > before:
            assert it.has_enough_replicas
            assert all(it.high_watermark <= ends[member] for member in it.maximal_isr)


def test_follower_stays_at_the_end_as_the_incarnation_that_fetched() -> None:
    it = leader()
    fetch(it, 2, 10)
    fetch(it, 3, 10)
    for now_ms in range(0, 5 * LAG_MAX_MS, LAG_MAX_MS // 2):
        assert it.tick(now_ms) is None
    it.stayed_at_end(2, EPOCHS[2], 5 * LAG_MAX_MS)
    it.stayed_at_end(3, EPOCHS[3] - 1, 5 * LAG_MAX_MS)
    it.stayed_at_end(4, 40, 5 * LAG_MAX_MS)
    it.appended(11)
    change = it.tick(5 * LAG_MAX_MS)
    assert change is not None
    assert change.isr == (1, 2)
