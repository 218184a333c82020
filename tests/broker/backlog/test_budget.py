"""No request waits for too long, however many are in flight and however often they are held."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.backlog.budget import (
    HOLD_MS_MAX,
    IN_FLIGHT,
    PAUSE_MS,
    THROTTLE_MS_MAX,
    HoldBudget,
)


@given(
    st.lists(st.integers(0, 30_000), max_size=60),  # when the partition opens after each hold
    st.integers(1, IN_FLIGHT),
    st.integers(0, 3000),
)
def test_no_request_is_older_than_the_longest_hold(
    opens_after_ms: list[int], in_flight: int, retry_ms: int
) -> None:
    """A client that keeps so many requests in flight, and sends another with every answer."""
    budget = HoldBudget()
    now_ms = 0
    sent: deque[int] = deque([0] * in_flight)
    for opens_ms in opens_after_ms:
        sent_ms = sent.popleft()
        now_ms = max(now_ms, sent_ms)
        held_ms = min(opens_ms, budget.left_ms(30_000, now_ms))
        now_ms += held_ms
        budget.spent(held_ms, now_ms)
        assert now_ms - sent_ms <= HOLD_MS_MAX + PAUSE_MS + (IN_FLIGHT - 1) * THROTTLE_MS_MAX
        is_refused = held_ms < opens_ms
        if is_refused:
            now_ms += budget.throttle(30_000, now_ms)
        sent.append(now_ms + (retry_ms if is_refused else 0))


def test_request_is_held_for_at_most_half_of_its_time_out() -> None:
    assert HoldBudget().left_ms(30_000, 0) == HOLD_MS_MAX
    assert HoldBudget().left_ms(5_000, 0) == 2_500
    assert HoldBudget().left_ms(0, 0) == 0


def test_requests_behind_one_that_was_held_to_the_end_are_not_held() -> None:
    budget = HoldBudget()
    budget.spent(HOLD_MS_MAX, 10_000)
    for _ in range(IN_FLIGHT - 1):
        assert budget.left_ms(30_000, 10_000) == 0
        budget.spent(0, 10_000)
    assert budget.left_ms(30_000, 10_001) == HOLD_MS_MAX  # sent after the first was answered


def test_client_of_a_refused_request_is_throttled_by_a_part_of_its_time_out() -> None:
    assert HoldBudget().throttle(30_000, 0) == THROTTLE_MS_MAX
    assert HoldBudget().throttle(2_000, 0) == 100


def test_throttle_counts_as_a_part_of_the_hold_before_it() -> None:
    budget = HoldBudget()
    budget.spent(4_000, 10_000)
    budget.throttle(30_000, 10_000)
    assert budget.left_ms(30_000, 11_000 + PAUSE_MS - 1) == HOLD_MS_MAX - 4_000 - THROTTLE_MS_MAX
    assert budget.left_ms(30_000, 11_000 + PAUSE_MS) == HOLD_MS_MAX


def test_pause_ends_the_series() -> None:
    budget = HoldBudget()
    budget.spent(HOLD_MS_MAX, 10_000)
    assert budget.left_ms(30_000, 10_000 + PAUSE_MS - 1) == 0
    assert budget.left_ms(30_000, 10_000 + PAUSE_MS) == HOLD_MS_MAX
