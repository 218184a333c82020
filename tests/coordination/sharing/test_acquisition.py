"""Which records a member gets, and in what company."""

from __future__ import annotations

import pytest

from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.window import ACCEPT, RELEASE, ShareWindow
from tests.coordination.sharing.windows import LIMITS, check, log_of, say, take


def test_new_records_come_in_batches_of_about_the_size_wished_for() -> None:
    window = ShareWindow(0, LIMITS)
    acquired = take(window, log_of(*[30] * 10), batch_size=100, records=1_000)
    assert acquired == [(0, 119, 1), (120, 239, 1), (240, 299, 1)]
    check(window)


@pytest.mark.parametrize("batch_size", [0, -5, 1])
def test_batches_are_those_of_the_log_where_the_member_wishes_none(batch_size: int) -> None:
    window = ShareWindow(0, LIMITS)
    assert take(window, log_of(3, 4), batch_size=batch_size) == [(0, 2, 1), (3, 6, 1)]
    check(window)


def test_nothing_is_acquired_without_a_wish_for_records() -> None:
    window = ShareWindow(0, LIMITS)
    assert take(window, log_of(3), records=0) == []
    assert take(window, [], records=5) == []
    assert window.end_offset == 0


def test_batches_of_the_log_stay_whole_whatever_the_limit() -> None:
    window = ShareWindow(0, LIMITS)
    assert take(window, log_of(40, 40, 40), records=50) == [(0, 79, 1)]


def test_record_limit_is_kept_to_the_record() -> None:
    window = ShareWindow(0, LIMITS)
    log = log_of(40, 40)
    assert take(window, log, records=7, record_limit=True) == [(0, 6, 1)]
    assert take(window, log, "b", records=50, record_limit=True) == [(7, 56, 1)]
    say(window, 0, 6, RELEASE)
    assert take(window, log, "b", records=3, record_limit=True) == [(0, 2, 2)]
    assert take(window, log, "c", records=30, record_limit=True) == [(3, 6, 2), (57, 79, 1)]
    check(window)


def test_released_batch_comes_again_as_it_was() -> None:
    window = ShareWindow(0, LIMITS)
    log = log_of(*[10] * 6)
    assert take(window, log, batch_size=20) == [(0, 19, 1), (20, 39, 1), (40, 59, 1)]
    say(window, 0, 39, RELEASE)
    assert take(window, log, "b", records=5) == [(0, 19, 2)]
    assert take(window, log, "b") == [(20, 39, 2)]


def test_window_that_begins_within_a_batch_gives_nothing_before_it() -> None:
    window = ShareWindow(15, LIMITS)
    assert take(window, log_of(10, 10)) == [(15, 19, 1)]


def test_offsets_without_records_before_what_was_read_are_done_with() -> None:
    window = ShareWindow(0, LIMITS)
    assert take(window, log_of(10, first=20)) == [(20, 29, 1)]
    assert (window.start_offset, window.end_offset) == (20, 30)
    check(window)


def test_released_records_that_compaction_took_are_done_with() -> None:
    window = ShareWindow(0, LIMITS)
    take(window, log_of(30))
    say(window, 5, 29, RELEASE)
    assert take(window, log_of(10, first=20)) == [(20, 29, 2)]
    say(window, 0, 4, ACCEPT)
    assert window.start_offset == 20
    check(window)


def test_aborted_transactions_are_for_nobody() -> None:
    window = ShareWindow(0, LIMITS)
    log = log_of(10, 10, 10, 10)
    aborted = [(0, 9), (20, 24), (35, 39)]
    assert take(window, log, aborted=aborted) == [(10, 19, 1), (25, 34, 1)]
    assert window.start_offset == 10
    say(window, 10, 19, ACCEPT)
    assert window.start_offset == 25
    say(window, 25, 34, ACCEPT)
    assert window.start_offset == 40
    check(window)


def test_bad_record_is_isolated_in_ever_smaller_batches() -> None:
    """Half of the batch from half of the allowed deliveries on; the last attempt alone."""
    window = ShareWindow(0, Limits(delivery_count_max=6))
    log = log_of(16)
    sizes = []
    for delivery in range(1, 6):
        ((first, last, count),) = take(window, log)
        assert (first, count) == (0, delivery)
        sizes.append(last + 1)
        say(window, 0, last, RELEASE)
    assert sizes == [16, 16, 16, 8, 4]
    assert take(window, log) == [(0, 0, 6)]
    check(window)


def test_last_attempt_is_made_alone() -> None:
    window = ShareWindow(0, Limits(delivery_count_max=3))
    log = log_of(4)
    take(window, log)
    say(window, 0, 3, RELEASE)
    take(window, log)
    say(window, 0, 3, RELEASE)
    for offset in range(4):
        assert take(window, log) == [(offset, offset, 3)]
    assert take(window, log) == []
    check(window)


def test_records_near_their_limit_are_not_mixed_with_others() -> None:
    window = ShareWindow(0, Limits(delivery_count_max=4))
    log = log_of(4, 4)
    take(window, log[:1])
    say(window, 0, 3, RELEASE)
    take(window, log[:1])
    say(window, 0, 3, RELEASE)
    assert take(window, log) == [(0, 1, 3)]  # of the batch at fault, and nothing else
    assert take(window, log) == [(2, 3, 3)]
    assert take(window, log) == [(4, 7, 1)]


def test_failing_batch_behind_a_good_one_waits_for_its_own_turn() -> None:
    window = ShareWindow(0, Limits(delivery_count_max=4))
    log = log_of(4, 4)
    take(window, log, batch_size=4)
    say(window, 4, 7, RELEASE)
    take(window, log, batch_size=4)
    say(window, 4, 7, RELEASE)
    say(window, 0, 3, RELEASE)
    assert take(window, log) == [(0, 3, 2)]
    assert take(window, log) == [(4, 5, 3)]


def test_two_deliveries_are_made_without_isolation() -> None:
    window = ShareWindow(0, Limits(delivery_count_max=2))
    log = log_of(4)
    take(window, log)
    say(window, 0, 3, RELEASE)
    assert take(window, log) == [(0, 3, 2)]
