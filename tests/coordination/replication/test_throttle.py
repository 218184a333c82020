"""Rates of replication, with time as an argument."""

from __future__ import annotations

import pytest

from millstream.coordination.replication.throttle import (
    NEVER_MS,
    UNLIMITED,
    ByteQuota,
    throttled_partitions,
)


def test_bytes_beyond_the_rate_have_to_be_waited_for() -> None:
    quota = ByteQuota()
    assert quota.wait_ms(1000, 0) == 0
    quota.record(500, 1000, 0)
    assert [quota.wait_ms(1000, now_ms) for now_ms in (0, 200, 499, 500)] == [500, 300, 1, 0]
    quota.record(2000, 1000, 500)
    quota.record(1000, 1000, 1500)
    assert quota.wait_ms(1000, 1500) == 2000


def test_unused_time_is_not_saved_up() -> None:
    quota = ByteQuota()
    quota.record(100, 1000, 0)
    quota.record(1000, 1000, 60_000)
    assert quota.wait_ms(1000, 60_000) == 1000


def test_average_is_the_rate_whatever_the_sizes() -> None:
    quota, now_ms, total = ByteQuota(), 0, 0
    for size in (10, 7_000, 1, 900, 25_000, 3) * 50:
        quota.record(size, 4000, now_ms)
        total += size
        now_ms += quota.wait_ms(4000, now_ms)
    assert total / now_ms == pytest.approx(4.0, rel=0.01)


def test_rate_can_change_while_there_is_a_debt() -> None:
    quota = ByteQuota()
    quota.record(1_000_000, 1, 0)
    assert quota.wait_ms(1, 0) == 1_000_000_000
    assert quota.wait_ms(500_000, 0) == 2000
    assert quota.wait_ms(UNLIMITED, 1) == 0


def test_rate_of_nothing_lets_nothing_through() -> None:
    quota = ByteQuota()
    assert quota.wait_ms(0, 0) == NEVER_MS
    assert quota.wait_ms(0, 10**9) == NEVER_MS


def test_clock_that_goes_back_pays_nothing() -> None:
    quota = ByteQuota()
    quota.record(1000, 1000, 5000)
    assert quota.wait_ms(1000, 4000) == 1000


@pytest.mark.parametrize(
    ("replicas", "partitions"),
    [
        ((), frozenset()),
        (("*",), None),
        (("0:1", "0:2", "3:1"), frozenset({0, 3})),
        (("7:11",), frozenset()),
    ],
)
def test_partitions_of_a_broker_are_found(
    replicas: tuple[str, ...], partitions: frozenset[int] | None
) -> None:
    assert throttled_partitions(replicas, 1) == partitions
