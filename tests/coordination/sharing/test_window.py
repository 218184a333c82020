"""The window of a share partition: who holds what, and what becomes of it."""

from __future__ import annotations

import pytest

from millstream.coordination.share_state import DeliveryState, StateBatch
from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.runs import CORRUPT, LIMIT, REJECTED
from millstream.coordination.sharing.window import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    ShareWindow,
)
from millstream.errors import ApiError, ErrorCode
from tests.coordination.sharing.windows import LIMITS, check, log_of, say, settle, states, take

AVAILABLE = DeliveryState.AVAILABLE
ACQUIRED = DeliveryState.ACQUIRED
ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
ARCHIVING = DeliveryState.ARCHIVING
ARCHIVED = DeliveryState.ARCHIVED


def held(size: int = 10, limits: Limits = LIMITS) -> ShareWindow:
    """A window of records that member `a` holds."""
    window = ShareWindow(0, limits)
    assert take(window, log_of(size)) == [(0, size - 1, 1)]
    return window


def refusal(window: ShareWindow, *acks: tuple[int, int, int], member: str = "a") -> ErrorCode:
    before = window.describe()
    with pytest.raises(ApiError) as error:
        window.acknowledge(member, acks, 0)
    check(window)
    assert states(window) == {
        offset: batch.delivery_state
        for batch in before
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    return error.value.code


def test_window_moves_its_start_past_what_is_accepted() -> None:
    window = held()
    say(window, 0, 3, ACCEPT)
    assert (window.start_offset, window.end_offset) == (4, 10)
    say(window, 6, 9, ACCEPT)
    assert window.start_offset == 4
    assert window.done_count == 4
    say(window, 4, 5, ACCEPT)
    assert (window.start_offset, window.end_offset, len(window.runs)) == (10, 10, 0)
    check(window)


def test_window_writes_the_start_offset_as_it_will_be() -> None:
    window = held()
    change = window.acknowledge("a", [(0, 3, ACCEPT), (5, 6, REJECT), (8, 8, RELEASE)], 0)
    write = window.prepare_write([change])
    assert write.start_offset == 4
    assert write.delivery_complete_count == 2
    assert write.batches == [
        StateBatch(5, 6, ARCHIVED, 1),
        StateBatch(8, 8, AVAILABLE, 1),
    ]
    assert window.start_offset == 0  # until it is durable
    window.commit(change)
    assert window.start_offset == 4
    check(window)


def test_window_joins_the_batches_of_changes_in_one_write() -> None:
    window = held()
    changes = [window.acknowledge("a", [(offset, offset, ACCEPT)], 0) for offset in (4, 2, 3)]
    write = window.prepare_write(changes)
    assert write.batches == [StateBatch(2, 4, ACKNOWLEDGED, 1)]
    assert (write.start_offset, write.delivery_complete_count) == (0, 3)


def test_window_delivers_a_released_record_again_before_new_ones() -> None:
    window = held()
    say(window, 3, 4, RELEASE)
    assert window.next_fetch_offset == 3
    assert take(window, log_of(10, 10), "b") == [(3, 4, 2), (10, 19, 1)]
    check(window)


def test_window_archives_gaps_and_rejected_records() -> None:
    window = held()
    say(window, 0, 0, GAP)
    say(window, 1, 9, REJECT)
    assert window.start_offset == 10


@pytest.mark.parametrize("member", ["b", ""])
def test_acknowledgement_is_refused_of_what_another_holds(member: str) -> None:
    assert refusal(held(), (0, 9, ACCEPT), member=member) is ErrorCode.INVALID_RECORD_STATE


def test_acknowledgement_is_refused_of_what_was_never_delivered() -> None:
    window = held()
    assert refusal(window, (0, 10, ACCEPT)) is ErrorCode.INVALID_REQUEST
    assert refusal(window, (10, 11, ACCEPT)) is ErrorCode.INVALID_REQUEST
    assert refusal(ShareWindow(5, LIMITS), (5, 6, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE


def test_acknowledgement_is_refused_while_one_is_under_way() -> None:
    window = held()
    change = window.acknowledge("a", [(2, 4, ACCEPT)], 0)
    assert refusal(window, (4, 5, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    window.commit(change)
    assert refusal(window, (3, 3, RELEASE)) is ErrorCode.INVALID_RECORD_STATE


def test_acknowledgement_that_is_wrong_in_its_second_part_changes_nothing() -> None:
    window = held()
    say(window, 5, 5, RELEASE)
    assert refusal(window, (0, 4, ACCEPT), (5, 6, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    say(window, 0, 4, ACCEPT)
    assert window.start_offset == 5


def test_acknowledgement_of_what_is_done_with_is_ignored_before_the_start() -> None:
    window = held()
    say(window, 0, 4, ACCEPT)
    assert window.acknowledge("a", [(0, 4, ACCEPT)], 0).runs == []
    assert window.acknowledge("b", [(1, 2, REJECT)], 0).runs == []


def test_lock_runs_out_and_the_record_comes_again() -> None:
    window = held()
    say(window, 0, 1, ACCEPT)
    assert window.next_deadline_ms() == 30_000
    assert not window.tick(29_999).batches
    change = window.tick(30_000)
    assert change.batches == [StateBatch(2, 9, AVAILABLE, 1)]
    assert refusal(window, (2, 9, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert take(window, log_of(10), "b", now_ms=30_000) == [(2, 9, 2)]
    assert window.next_deadline_ms() == 60_000
    check(window)


def test_renewal_prolongs_the_lock_and_writes_nothing() -> None:
    window = held()
    assert window.acknowledge("a", [(0, 4, RENEW)], 20_000).batches == []
    assert window.tick(30_000).batches == [StateBatch(5, 9, AVAILABLE, 1)]
    assert window.next_deadline_ms() == 50_000
    assert window.tick(50_000).batches == [StateBatch(0, 4, AVAILABLE, 1)]
    check(window)


def test_renewal_is_refused_where_the_group_does_not_allow_it() -> None:
    window = held(limits=Limits(can_renew=False))
    assert refusal(window, (0, 4, RENEW)) is ErrorCode.INVALID_RECORD_STATE


def test_rollback_leaves_the_records_held() -> None:
    window = held()
    change = window.acknowledge("a", [(0, 4, ACCEPT), (5, 9, RELEASE)], 0)
    assert window.rollback(change, 10).batches == []
    assert set(states(window).values()) == {ACQUIRED}
    say(window, 0, 9, ACCEPT)
    assert window.start_offset == 10


def test_rollback_after_the_lock_ran_out_releases_the_records() -> None:
    window = held()
    change = window.acknowledge("a", [(0, 9, ACCEPT)], 29_000)
    assert window.tick(30_000).batches == []  # it may yet become durable
    assert window.rollback(change, 30_001).batches == [StateBatch(0, 9, AVAILABLE, 1)]
    assert take(window, log_of(10), "b") == [(0, 9, 2)]
    check(window)


def test_record_at_its_delivery_limit_is_archived_not_released() -> None:
    window = held(limits=Limits(delivery_count_max=2))
    say(window, 0, 9, RELEASE)
    assert take(window, log_of(10)) == [(0, 9, 2)]
    say(window, 0, 0, RELEASE)
    assert window.start_offset == 1
    assert window.tick(30_000).batches == [StateBatch(1, 9, ARCHIVED, 2)]
    assert window.start_offset == 10


def test_member_that_leaves_releases_what_it_holds_and_nothing_else() -> None:
    window = held()
    take(window, log_of(10, 10), "b")
    say(window, 2, 3, ACCEPT)
    settle(window, window.release("a", 0))
    assert take(window, log_of(10, 10), "c") == [(0, 1, 2), (4, 9, 2)]
    assert states(window)[10] is ACQUIRED
    check(window)


def test_log_start_takes_what_is_before_it_from_whoever_holds_it() -> None:
    window = held(20)
    say(window, 2, 2, RELEASE)
    change = window.acknowledge("a", [(0, 1, ACCEPT), (3, 9, ACCEPT)], 0)
    window.log_starts_at(6)
    check(window)
    assert window.start_offset == 6
    window.commit(change)
    assert window.start_offset == 10
    say(window, 0, 19, ACCEPT)  # as far as there is anything left of it
    assert window.start_offset == 20
    window.log_starts_at(50)
    assert (window.start_offset, window.end_offset) == (50, 50)
    check(window)


def test_log_start_within_a_released_run_leaves_the_rest_of_it_available() -> None:
    window = held(20)
    say(window, 0, 19, RELEASE)
    window.log_starts_at(7)
    check(window)
    assert take(window, log_of(20)) == [(7, 19, 2)]


def test_restored_window_knows_what_was_persisted_and_forgets_what_was_held() -> None:
    window = ShareWindow.restored(
        10,
        [
            StateBatch(10, 14, ACKNOWLEDGED, 1),
            StateBatch(18, 19, AVAILABLE, 3),
            StateBatch(20, 24, ARCHIVED, 5),
            StateBatch(25, 25, ACKNOWLEDGED, 1),
        ],
        Limits(delivery_count_max=10),
    )
    check(window)
    assert (window.start_offset, window.end_offset) == (15, 26)
    assert take(window, log_of(5, 8, 13, 10)) == [(15, 17, 1), (18, 19, 4), (26, 35, 1)]
    check(window)


def test_restored_window_resumes_dead_letters_that_were_not_written() -> None:
    limits = Limits(has_dead_letters=True)
    batches = [StateBatch(0, 1, ARCHIVING, 2), StateBatch(2, 2, ARCHIVING, 5)]
    window = ShareWindow.restored(0, batches, limits)
    assert window.dying() == [(0, 1, 2, REJECTED), (2, 2, 5, LIMIT)]
    assert window.next_fetch_offset == 3


def test_dead_letters_hold_records_until_they_are_written() -> None:
    window = held(limits=Limits(has_dead_letters=True, delivery_count_max=2))
    change = window.acknowledge("a", [(0, 1, REJECT), (2, 9, RELEASE)], 0)
    assert change.batches == [StateBatch(0, 1, ARCHIVING, 1), StateBatch(2, 9, AVAILABLE, 1)]
    settle(window, change)
    assert take(window, log_of(10)) == [(2, 9, 2)]
    assert window.tick(30_000).batches == [StateBatch(2, 9, ARCHIVING, 2)]
    assert window.dying() == [(0, 1, 1, REJECTED), (2, 9, 2, LIMIT)]
    assert window.start_offset == 0
    assert window.bury(0, 4).batches == [
        StateBatch(0, 1, ARCHIVED, 1),
        StateBatch(2, 4, ARCHIVED, 2),
    ]
    assert (window.start_offset, window.dying_count) == (5, 5)
    window.bury(5, 9)
    assert (window.start_offset, window.dying_count) == (10, 0)
    check(window)


def test_given_up_records_keep_their_reason_when_some_of_them_are_buried() -> None:
    window = held(limits=Limits(has_dead_letters=True))
    say(window, 0, 9, REJECT)
    window.bury(0, 4)
    assert window.dying() == [(5, 9, 1, REJECTED)]


def test_restored_record_that_reaches_its_limit_was_not_rejected() -> None:
    limits = Limits(has_dead_letters=True, delivery_count_max=2)
    window = ShareWindow.restored(0, [StateBatch(0, 4, AVAILABLE, 1)], limits)
    assert take(window, log_of(5)) == [(0, 4, 2)]
    window.tick(30_000)
    assert window.dying() == [(0, 4, 2, LIMIT)]


@pytest.mark.parametrize("has_dead_letters", [True, False])
def test_damaged_records_are_given_up_but_not_those_that_a_member_has(
    *, has_dead_letters: bool
) -> None:
    window = held(limits=Limits(has_dead_letters=has_dead_letters))
    say(window, 2, 5, RELEASE)
    window.give_up(4, 14)
    check(window)
    assert take(window, log_of(10, 10)) == [(2, 3, 2), (15, 19, 1)]
    say(window, 6, 9, ACCEPT)
    expected = [(4, 5, 1, CORRUPT), (10, 14, 0, CORRUPT)] if has_dead_letters else []
    assert window.dying() == expected
    for first, last, _, _ in expected:
        window.bury(first, last)
    check(window)
    for first, last in ((0, 1), (2, 3), (15, 19)):
        say(window, first, last, ACCEPT)
    assert window.start_offset == 20
    check(window)


# Delayed retry

RETRY = Limits(backoff_ms=1_000, backoff_max_ms=60_000, delivery_count_max=10, delayed_max=4)


def test_released_record_waits_for_its_backoff() -> None:
    window = held(limits=RETRY)
    change = window.acknowledge("a", [(0, 0, RELEASE)], 500)
    assert change.batches == [StateBatch(0, 0, AVAILABLE, 1, 1_500)]
    settle(window, change)
    assert window.next_fetch_offset == 10
    assert window.next_deadline_ms() == 1_500
    window.tick(1_499)
    assert window.next_fetch_offset == 10
    window.tick(1_500)
    assert take(window, log_of(10)) == [(0, 0, 2)]
    check(window)


def test_backoff_grows_with_deliveries_that_time_out() -> None:
    window = held(1, limits=RETRY)
    due = [window.tick(30_000).batches[0].due_ms - 30_000]
    now_ms = 30_000
    for _ in range(7):
        now_ms += due[-1]
        window.tick(now_ms)
        assert take(window, log_of(1), now_ms=now_ms)
        now_ms += 30_000
        due.append(window.tick(now_ms).batches[0].due_ms - now_ms)
    assert due == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_released_records_beyond_the_bound_of_the_delayed_come_at_once() -> None:
    window = held(limits=RETRY)
    say(window, 0, 2, RELEASE)
    assert not window.delay_was_refused
    say(window, 3, 4, RELEASE)
    assert window.delay_was_refused
    assert window.delayed_count == 3
    assert take(window, log_of(10)) == [(3, 4, 2)]
    check(window)


def test_rollback_gives_the_places_of_the_delayed_back() -> None:
    window = held(limits=RETRY)
    window.rollback(window.acknowledge("a", [(0, 3, RELEASE)], 0), 0)
    assert window.delayed_count == 0
    say(window, 4, 7, RELEASE)
    assert window.delayed_count == 4
    check(window)


def test_due_times_survive_in_what_is_persisted() -> None:
    window = ShareWindow.restored(0, [StateBatch(0, 0, AVAILABLE, 3, 7_000)], RETRY)
    assert window.next_fetch_offset == 1
    window.tick(7_000)
    assert take(window, log_of(1)) == [(0, 0, 4)]


def test_delayed_record_at_the_head_holds_up_nobody() -> None:
    limits = Limits(backoff_ms=60_000, record_locks_max=2_000)
    window = ShareWindow(0, limits)
    log = log_of(*[100] * 1_001)
    take(window, log[:1], records=1)
    say(window, 0, 0, RELEASE)
    say(window, 1, 99, ACCEPT)
    for number in range(1, 1_001):
        first = number * 100
        assert take(window, log[number : number + 1], records=100) == [(first, first + 99, 1)]
        say(window, first, first + 99, ACCEPT)
        assert len(window.runs) == 2  # what is done with behind it is one run
    assert (window.start_offset, window.end_offset) == (0, 100_100)
    window.tick(60_000)
    assert take(window, log[:1]) == [(0, 0, 2)]
    say(window, 0, 0, ACCEPT)
    assert window.start_offset == 100_100
    check(window)


def test_without_backoff_the_span_of_the_window_is_bounded_as_in_kafka() -> None:
    window = ShareWindow(0, Limits(record_locks_max=200))
    log = log_of(*[100] * 10)
    take(window, log, records=100)
    take(window, log, records=100)
    say(window, 100, 199, ACCEPT)
    assert not window.can_acquire
    say(window, 50, 50, RELEASE)
    assert take(window, log, "b") == [(50, 50, 2)]  # what is in the window may come again
    say(window, 0, 49, ACCEPT)
    assert take(window, log, records=10) == [(200, 299, 1)]


def test_with_backoff_only_so_many_records_are_held_at_once() -> None:
    window = ShareWindow(0, Limits(record_locks_max=200, backoff_ms=1_000))
    log = log_of(*[100] * 10)
    take(window, log, records=200)
    assert not window.can_acquire
    say(window, 150, 199, ACCEPT)
    assert take(window, log, records=10, record_limit=True) == [(200, 209, 1)]
    check(window)
