"""What is missing between numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.zeromq import numbers as module
from millstream.bridges.zeromq.numbers import BEFORE, SKIPPED, Gap, Numbers

A, B = b"a" * 16, b"b" * 16


def test_skipped_numbers_are_a_gap_of_their_sender() -> None:
    numbers = Numbers()
    assert numbers.take(A, 0) is None
    assert numbers.take(B, 0) is None
    assert numbers.take(A, 5) == Gap(A, 1, 4, SKIPPED)
    assert numbers.take(B, 1) is None


def test_heartbeat_shows_what_was_lost_at_the_end() -> None:
    numbers = Numbers()
    assert numbers.hear(A, 0) is None
    numbers.take(A, 0)
    assert numbers.hear(A, 1) is None
    gap = numbers.hear(A, 3)
    assert gap == Gap(A, 1, 2, SKIPPED)
    assert gap.lost == 2
    assert numbers.take(A, 3) is None


def test_beginning_that_was_missed_has_its_own_reason() -> None:
    assert Numbers().take(A, 7) == Gap(A, 0, 6, BEFORE)
    assert Numbers().hear(A, 7) == Gap(A, 0, 6, BEFORE)
    assert Numbers({A: 4}).take(A, 7) == Gap(A, 5, 6, SKIPPED)


def test_late_message_is_counted_and_changes_nothing() -> None:
    numbers = Numbers()
    numbers.take(A, 0)
    numbers.take(A, 3)
    assert numbers.take(A, 1) is None
    assert numbers.hear(A, 2) is None
    assert numbers.late == 1
    assert numbers.take(A, 4) is None


def test_senders_are_bounded() -> None:
    numbers = Numbers()
    for number in range(module.SENDERS_MAX + 5):
        numbers.take(number.to_bytes(16, "big"), 0)
    assert len(numbers._next) == module.SENDERS_MAX


@given(st.sets(st.integers(0, 60)), st.integers(0, 70))
def test_each_number_came_or_is_in_one_gap(came: set[int], end: int) -> None:
    numbers, seen = Numbers(), []
    following = max([end, *(it + 1 for it in came)])
    for gap in [*(numbers.take(A, it) for it in sorted(came)), numbers.hear(A, following)]:
        seen += [] if gap is None else range(gap.first, gap.last + 1)
    assert sorted([*seen, *came]) == list(range(following))
