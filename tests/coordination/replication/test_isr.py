"""In-sync sets: lag, and the leader's own delays."""

from __future__ import annotations

from millstream.coordination.replication.isr import (
    FollowerProgress,
    effective_min_isr,
    maximal_isr,
)

LAG_MAX_MS = 100


def follower(*fetches: tuple[int, int, int]) -> FollowerProgress:
    """After fetches of (offset, leader's end, time), each answered at once."""
    progress = FollowerProgress()
    for offset, leader_end, now_ms in fetches:
        progress.fetched(offset, leader_end, now_ms)
        progress.answered(now_ms)
    return progress


def test_min_isr_is_at_most_the_number_of_replicas_and_at_least_one() -> None:
    assert [effective_min_isr(*it) for it in ((2, 3), (3, 2), (0, 3), (1, 1))] == [2, 2, 1, 1]


def test_maximal_isr_has_the_members_of_both_sets_once() -> None:
    assert maximal_isr((1, 2), None) == (1, 2)
    assert maximal_isr((1, 2), (1, 3)) == (1, 2, 3)
    assert maximal_isr((1, 2, 3), (1,)) == (1, 2, 3)


def test_follower_at_the_leaders_end_is_in_sync_however_long_ago_it_fetched() -> None:
    assert follower((5, 5, 0)).is_in_sync(5, 10_000, LAG_MAX_MS)


def test_follower_behind_is_in_sync_until_the_lag_is_exceeded() -> None:
    progress = follower((5, 5, 0))
    assert progress.is_in_sync(6, LAG_MAX_MS, LAG_MAX_MS)
    assert not progress.is_in_sync(6, LAG_MAX_MS + 1, LAG_MAX_MS)


def test_follower_that_reaches_the_end_of_its_former_fetch_was_caught_up_then() -> None:
    progress = follower((0, 5, 50), (5, 9, 120))
    assert progress.caught_up_ms == 50
    assert progress.is_in_sync(9, 150, LAG_MAX_MS)
    assert not progress.is_in_sync(9, 151, LAG_MAX_MS)


def test_follower_that_never_was_caught_up_is_not_in_sync() -> None:
    assert not follower((0, 5, 0), (2, 7, 10)).is_in_sync(7, 20, LAG_MAX_MS)


def test_time_for_which_the_leader_holds_a_fetch_does_not_count() -> None:
    progress = follower((5, 5, 0))
    progress.fetched(7, 9, 60)
    assert progress.is_in_sync(9, 190, LAG_MAX_MS)
    progress.answered(190)
    assert progress.is_in_sync(9, 230, LAG_MAX_MS)
    assert not progress.is_in_sync(9, 231, LAG_MAX_MS)


def test_fetch_that_is_never_answered_does_not_keep_a_follower_in_sync_for_ever() -> None:
    progress = FollowerProgress()
    progress.fetched(5, 5, 0)
    assert progress.is_in_sync(9, 2 * LAG_MAX_MS, LAG_MAX_MS)
    assert not progress.is_in_sync(9, 2 * LAG_MAX_MS + 1, LAG_MAX_MS)


def test_excuse_never_reaches_into_the_future() -> None:
    progress = follower((5, 5, 90))
    progress.excuse(1_000, 100)
    assert progress.caught_up_ms == 100


def test_follower_that_stays_at_the_end_counts_from_the_time_at_which_the_log_grows() -> None:
    progress = follower((5, 5, 0))
    progress.stayed_at_end(1_000)
    assert progress.is_in_sync(6, 1_000 + LAG_MAX_MS, LAG_MAX_MS)
    assert not progress.is_in_sync(6, 1_001 + LAG_MAX_MS, LAG_MAX_MS)
    progress.fetched(6, 8, 1_200)  # it had all that there was when it was last known to be there
    assert progress.caught_up_ms == 1_000
