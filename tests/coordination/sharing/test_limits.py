"""The limits of a group, and the waits of delayed retry."""

from __future__ import annotations

import pytest

from millstream.coordination.sharing.limits import Limits


@pytest.mark.parametrize(
    ("deliveries", "throttled_from"), [(2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (10, 5), (25, 13)]
)
def test_batches_shrink_from_half_of_the_deliveries_on(
    deliveries: int, throttled_from: int
) -> None:
    assert Limits(delivery_count_max=deliveries).throttled_from == throttled_from


def test_last_attempt_is_special_from_three_deliveries_on() -> None:
    assert Limits(delivery_count_max=3).is_last_attempt(2)
    assert not Limits(delivery_count_max=3).is_last_attempt(1)
    assert not Limits(delivery_count_max=2).is_last_attempt(1)


def test_backoff_grows_to_its_maximum() -> None:
    limits = Limits(backoff_ms=100, backoff_multiplier=3, backoff_max_ms=1_000)
    assert [limits.backoff_after(count) for count in range(1, 5)] == [100, 300, 900, 1_000]


def test_backoff_is_off_by_default_and_never_overflows() -> None:
    assert Limits().backoff_after(3) == 0
    huge = Limits(backoff_ms=86_400_000, backoff_multiplier=100, backoff_max_ms=86_400_000)
    assert huge.backoff_after(10_000) == 86_400_000
