"""Rates and token buckets, against what was counted when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.quotas.rates import (
    LEASE_MAX,
    THROTTLE_MS_MAX,
    SampledRate,
    TokenBucket,
    Window,
)

WINDOW = Window()
MEGABYTE = 1_000_000

steps = st.lists(
    st.tuples(st.integers(0, 4000) | st.integers(0, 30_000), st.integers(0, 5000)), max_size=60
)
windows = st.builds(Window, st.integers(1, 12), st.sampled_from([1000, 2000, 7000]))


def naive_rate(window: Window, events: list[tuple[int, int]], now_ms: int) -> float:
    """Per second: the sum of the last samples, by the time since the oldest of them began."""
    samples, sample_ms = window
    oldest = now_ms // sample_ms - samples + 1
    used = sum(amount for at_ms, amount in events if at_ms // sample_ms >= oldest)
    elapsed_ms = (samples - 1) * sample_ms + now_ms % sample_ms
    return used * 1000 / max(elapsed_ms, max(samples - 1, 1) * sample_ms)


@given(window=windows, bound=st.integers(1, 2000), steps=steps)
def test_rate_and_throttling_depend_only_on_what_was_counted_when(
    window: Window, bound: int, steps: list[tuple[int, int]]
) -> None:
    rate = SampledRate(window, bound)
    events: list[tuple[int, int]] = []
    now_ms = 0
    for wait_ms, amount in steps:
        now_ms += wait_ms
        events.append((now_ms, amount))
        throttle_ms = rate.record(amount, now_ms)
        expected = naive_rate(window, events, now_ms)
        assert rate.per_second(now_ms) == pytest.approx(expected)
        if expected <= bound:
            assert throttle_ms == 0
        else:
            throttle = (expected - bound) / bound * rate._window_ms(now_ms)
            assert throttle_ms == pytest.approx(max(1, throttle), abs=1)


@given(steps=st.lists(st.integers(1, 3 * MEGABYTE), min_size=30, max_size=60))
def test_client_that_waits_as_it_is_told_keeps_to_its_quota(steps: list[int]) -> None:
    rate = SampledRate(WINDOW, MEGABYTE)
    now_ms, total = 0, 0
    for size in steps:
        total += size
        now_ms += rate.record(size, now_ms)
    burst = rate.amount_max + max(steps)
    assert total <= MEGABYTE * (now_ms / 1000 + WINDOW.sample_ms / 1000) + burst


def test_new_client_may_use_the_quota_of_a_window_at_once() -> None:
    rate = SampledRate(WINDOW, MEGABYTE)
    assert rate.amount_max == 10 * MEGABYTE
    assert rate.record(10 * MEGABYTE, 0) == 0
    assert rate.record(MEGABYTE, 0) == 1000
    assert rate.throttle_ms(999) == 1
    assert rate.throttle_ms(10_999) == 1
    assert rate.throttle_ms(11_000) == 0


def test_what_is_taken_back_does_not_count() -> None:
    rate = SampledRate(WINDOW, 100)
    assert rate.is_empty(0)
    assert rate.record(5000, 0) > 0
    rate.record(-5000, 0)
    assert rate.throttle_ms(0) == 0
    assert rate.is_empty(0)


def test_new_bound_applies_to_what_was_counted_before() -> None:
    rate = SampledRate(WINDOW, 100)
    assert rate.record(900, 500) == 0
    rate.set_bound(10)
    assert rate.record(0, 600) > 0
    rate.set_bound(1000)
    assert rate.record(0, 700) == 0


def test_everything_is_forgotten_after_the_window() -> None:
    rate = SampledRate(WINDOW, 100)
    rate.record(10**9, 999)
    assert not rate.is_empty(10_999)
    assert rate.is_empty(11_000)
    assert rate.record(1000, 10**9) == 0


def test_throttle_time_fits_its_field() -> None:
    assert SampledRate(WINDOW, 1e-300).record(1e300, 0) == THROTTLE_MS_MAX
    assert SampledRate(WINDOW, 0).record(1, 0) == THROTTLE_MS_MAX


@given(
    bound=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 9000), st.integers(-20, 100)), max_size=60),
)
def test_bucket_holds_what_a_naive_one_holds(bound: int, steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(WINDOW, bound, 0)
    full = bound * 11
    tokens, now_ms = float(full), 0
    for wait_ms, amount in steps:
        now_ms += wait_ms
        tokens = min(tokens + bound * wait_ms / 1000, full)
        tokens = min(tokens - amount, full)
        throttle_ms = bucket.record(amount, now_ms)
        assert bucket.tokens(now_ms) == pytest.approx(tokens)
        assert throttle_ms == pytest.approx(max(-tokens / bound * 1000, 0), abs=1)


def test_bucket_accepts_more_than_it_has_once() -> None:
    bucket = TokenBucket(WINDOW, 1, 0)
    assert bucket.tokens(0) == 11
    assert bucket.record(100, 0) == 89_000
    assert bucket.throttle_ms(88_999) == 1
    assert bucket.throttle_ms(89_000) == 0


def test_bucket_with_a_new_rate_keeps_its_debt() -> None:
    bucket = TokenBucket(WINDOW, 1, 0)
    bucket.record(21, 0)
    bucket.set_bound(10, 0)
    assert bucket.throttle_ms(0) == 1000
    assert TokenBucket(WINDOW, 0, 0).record(1, 0) == THROTTLE_MS_MAX


def test_lease_is_small_and_ends_before_the_quota_does() -> None:
    rate = SampledRate(WINDOW, MEGABYTE)
    assert rate.lease == 0  # nothing was counted yet
    rate.record(1, 0)
    assert rate.lease == 10_000
    rate.record(4_999_000, 0)
    assert rate.lease == 10_000
    rate.record(1000, 0)
    assert rate.lease == 0
    rate.record(0, 1000)
    assert rate.lease == 0
    unlimited = SampledRate(WINDOW, 1e12)
    unlimited.record(1, 0)
    assert unlimited.lease == LEASE_MAX
