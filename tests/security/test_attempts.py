"""Guessing passwords gets slow, for the address that guesses."""

from __future__ import annotations

import pytest

from millstream.security.attempts import (
    FAILURES_MAX,
    FORGOTTEN_AFTER_MS,
    STEP_MAX_MS,
    TOLERATED,
    WAIT_MAX_MS,
    FailedAttempts,
    TooManyFailures,
    network_of,
)

HOST = "192.0.2.1"


def after_failures(count: int, host: str = HOST) -> FailedAttempts:
    attempts = FailedAttempts()
    for _ in range(count):
        attempts.failed(host, 0)
    return attempts


def test_some_failures_are_tolerated() -> None:
    attempts = after_failures(TOLERATED)
    assert [attempts.wait_ms(HOST, 0) for _ in range(3)] == [0, 0, 0]
    assert attempts.wait_ms("192.0.2.2", 0) == 0


def test_then_authentications_take_turns_even_at_once() -> None:
    attempts = after_failures(TOLERATED + 1)
    assert [attempts.wait_ms(HOST, 0) for _ in range(4)] == [0, 200, 400, 600]
    assert attempts.wait_ms(HOST, 500) == 300
    assert attempts.wait_ms("192.0.2.2", 0) == 0


def test_turns_get_longer_with_each_failure_up_to_a_limit() -> None:
    steps = []
    for count in (1, 2, 3, 100):
        attempts = after_failures(TOLERATED + count)
        attempts.wait_ms(HOST, 0)
        steps.append(attempts.wait_ms(HOST, 0))
    assert steps == [200, 400, 800, STEP_MAX_MS]


def test_thousand_connections_guess_no_faster_than_one() -> None:
    attempts = after_failures(100)
    for _ in range(WAIT_MAX_MS // STEP_MAX_MS + 1):
        assert attempts.wait_ms(HOST, 0) <= WAIT_MAX_MS
    with pytest.raises(TooManyFailures):
        attempts.wait_ms(HOST, 0)
    assert attempts.wait_ms(HOST, WAIT_MAX_MS) <= WAIT_MAX_MS  # later there is room again


def test_failures_are_forgotten_one_by_one() -> None:
    attempts = after_failures(TOLERATED + 2)
    later = 2 * FORGOTTEN_AFTER_MS
    assert [attempts.wait_ms(HOST, later) for _ in range(2)] == [0, 0]
    attempts.failed(HOST, later)
    assert [attempts.wait_ms(HOST, later) for _ in range(2)] == [0, 200]


def test_address_that_has_stopped_soon_waits_no_more() -> None:
    """As a thousand programs behind one address with a wrong password, which is corrected."""
    attempts = after_failures(1000)
    assert attempts.wait_ms(HOST, 0) == 0
    assert attempts.wait_ms(HOST, 0) == STEP_MAX_MS
    for _ in range(FAILURES_MAX - TOLERATED):
        attempts.succeeded(HOST)
    assert [attempts.wait_ms(HOST, 0) for _ in range(3)] == [0, 0, 0]


def test_success_takes_back_one_failure() -> None:
    attempts = after_failures(TOLERATED + 2)
    attempts.succeeded(HOST)
    assert [attempts.wait_ms(HOST, 0) for _ in range(2)] == [0, 200]
    attempts.succeeded("192.0.2.9")


def test_memory_is_bounded() -> None:
    attempts = FailedAttempts(addresses_max=3)
    for index in range(10):
        attempts.failed(f"192.0.2.{index}", 0)
    assert len(attempts) == 3
    for _ in range(TOLERATED + 1):
        attempts.failed("192.0.2.9", 0)
    for index in range(2):
        attempts.failed(f"198.51.100.{index}", 0)
    attempts.wait_ms("192.0.2.9", 0)
    assert attempts.wait_ms("192.0.2.9", 0) > 0, "it failed last, and is kept"


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002"),
        ("2001:db8:1:2::9", "2001:0db8:0001:0002"),
        ("fe80::1%eth0", "fe80:0000:0000:0000"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("no:address", "no:address"),
    ],
)
def test_machines_of_ipv6_have_many_addresses(host: str, network: str) -> None:
    assert network_of(host) == network
