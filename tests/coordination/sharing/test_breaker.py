"""The breaker lets through what the limit allows, and makes the rest wait in its order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.sharing.breaker import BURST_SECONDS, Breaker


def test_breaker_lets_a_burst_through() -> None:
    breaker = Breaker(100, now_ms=0)
    assert [breaker.admit(100, now_ms=0) for _ in range(BURST_SECONDS)] == [0] * BURST_SECONDS
    assert not breaker.is_open


def test_breaker_opens_at_the_first_letter_without_a_token() -> None:
    breaker = Breaker(100, now_ms=0)
    breaker.admit(100 * BURST_SECONDS, now_ms=0)
    assert breaker.admit(1, now_ms=0) == 10
    assert breaker.opened_at_ms == 0


def test_breaker_gives_everybody_a_turn_in_their_order() -> None:
    breaker = Breaker(100, now_ms=0)
    breaker.admit(100 * BURST_SECONDS, now_ms=0)
    assert [breaker.admit(50, now_ms=0) for _ in range(3)] == [500, 1000, 1500]
    assert breaker.admit(50, now_ms=1000) == 1000
    assert breaker.delayed_records == 200


def test_breaker_takes_nothing_for_letters_that_did_not_pass() -> None:
    breaker = Breaker(100, now_ms=0)
    for _ in range(5):
        assert breaker.admit(100 * BURST_SECONDS, now_ms=0) == 0
        breaker.give_back(100 * BURST_SECONDS)
    breaker.give_back(100 * BURST_SECONDS)
    assert breaker.admit(100 * BURST_SECONDS + 1, now_ms=0) == 10, "it holds no more than it can"


def test_breaker_may_close_once_it_is_half_full() -> None:
    breaker = Breaker(100, now_ms=0)
    breaker.admit(100 * BURST_SECONDS + 100, now_ms=0)
    assert breaker.closes_in_ms(now_ms=0) == 6_000
    breaker.admit(100, now_ms=2_000)  # the flood goes on
    assert breaker.closes_in_ms(now_ms=2_000) == 5_000
    assert breaker.closes_in_ms(now_ms=7_000) == 0
    breaker.close()
    assert not breaker.is_open
    assert breaker.delayed_records == 0


def test_breaker_is_idle_once_it_is_full_again() -> None:
    breaker = Breaker(100, now_ms=0)
    assert breaker.is_idle(now_ms=0)
    breaker.admit(1, now_ms=0)
    assert not breaker.is_idle(now_ms=9)
    assert breaker.is_idle(now_ms=10)


def test_breaker_takes_over_another_limit() -> None:
    breaker = Breaker(100, now_ms=0)
    breaker.admit(1_500, now_ms=0)
    breaker.change_limit(1_000, now_ms=0)
    assert breaker.admit(500, now_ms=0) == 1_000


@given(
    st.integers(min_value=1, max_value=50),
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 2_000)), max_size=60),
)
def test_breaker_never_lets_more_through_than_burst_and_rate(
    limit: int, arrivals: list[tuple[int, int]]
) -> None:
    breaker = Breaker(limit, now_ms=0)
    now_ms = passed = latest_ms = 0
    for records, pause_ms in arrivals:
        now_ms += pause_ms
        passes_at_ms = now_ms + breaker.admit(records, now_ms)
        assert passes_at_ms >= latest_ms or passes_at_ms == now_ms
        latest_ms = max(latest_ms, passes_at_ms)
        passed += records
        assert passed <= limit * BURST_SECONDS + limit * latest_ms / 1000 + 1e-6
