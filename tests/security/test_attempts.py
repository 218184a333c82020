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

HOST, USER = "192.0.2.1", "ann"


def after_failures(count: int, host: str = HOST) -> FailedAttempts:
    attempts = FailedAttempts()
    for _ in range(count):
        attempts.failed(host, USER, 0)
    return attempts


def waits(attempts: FailedAttempts, count: int, now_ms: int = 0, user: str = USER) -> list[int]:
    return [attempts.wait_ms(HOST, user, now_ms) for _ in range(count)]


def test_some_failures_are_tolerated() -> None:
    attempts = after_failures(TOLERATED)
    assert waits(attempts, 3) == [0, 0, 0]
    assert attempts.wait_ms("192.0.2.2", USER, 0) == 0


def test_then_authentications_take_turns_even_at_once() -> None:
    attempts = after_failures(TOLERATED + 1)
    assert waits(attempts, 4) == [0, 200, 400, 800]
    assert attempts.wait_ms(HOST, USER, 500) == 1100
    assert attempts.wait_ms("192.0.2.2", USER, 0) == 0


def test_turns_get_longer_with_each_failure_up_to_a_limit() -> None:
    steps = []
    for count in (1, 2, 3, 100):
        attempts = after_failures(TOLERATED + count)
        attempts.wait_ms(HOST, USER, 0)
        steps.append(attempts.wait_ms(HOST, USER, 0))
    assert steps == [200, 400, 800, STEP_MAX_MS]


def test_thousand_connections_guess_no_faster_than_one() -> None:
    attempts = after_failures(100)
    for _ in range(WAIT_MAX_MS // STEP_MAX_MS + 1):
        assert attempts.wait_ms(HOST, USER, 0) <= WAIT_MAX_MS
    with pytest.raises(TooManyFailures):
        attempts.wait_ms(HOST, USER, 0)
    assert attempts.wait_ms(HOST, USER, WAIT_MAX_MS) <= WAIT_MAX_MS  # later there is room again


def test_thousand_guesses_before_the_first_has_failed() -> None:
    """They wait as long as if each had failed before the next came."""
    attempts = after_failures(TOLERATED + 1)
    waited = waits(attempts, 11)
    assert waited == [0, 200, 400, 800, 1600, 3200, 6400, 11400, 16400, 21400, 26400]
    with pytest.raises(TooManyFailures):
        waits(attempts, 2)


def test_failures_are_forgotten_one_by_one() -> None:
    attempts = after_failures(TOLERATED + 2)
    later = 2 * FORGOTTEN_AFTER_MS
    assert waits(attempts, 2, later) == [0, 0]
    attempts.failed(HOST, USER, later)
    assert waits(attempts, 2, later) == [0, 200]


def test_address_that_has_stopped_soon_waits_no_more() -> None:
    """As a thousand programs behind one address with a wrong password, which is corrected."""
    attempts = after_failures(1000)
    assert waits(attempts, 2) == [0, STEP_MAX_MS]
    soon = (FAILURES_MAX - TOLERATED) * FORGOTTEN_AFTER_MS
    assert waits(attempts, 3, soon) == [0, 0, 0]


def test_own_password_does_not_make_up_for_guesses_at_others() -> None:
    attempts = FailedAttempts()
    for _ in range(TOLERATED + 1):
        attempts.failed(HOST, USER, 0)
        attempts.succeeded(HOST, "mallory", 0)
    assert waits(attempts, 3) == [0, 200, 400]


def test_user_who_has_logged_in_does_not_wait_for_those_who_guess() -> None:
    attempts = FailedAttempts()
    attempts.succeeded(HOST, USER, 0)
    for _ in range(100):
        attempts.failed(HOST, "bob", 0)
    with pytest.raises(TooManyFailures):
        waits(attempts, 100, user="bob")
    assert waits(attempts, 3) == [0, 0, 0]
    attempts.succeeded("192.0.2.2", "carol", 0)
    with pytest.raises(TooManyFailures):  # she has logged in from somewhere else
        attempts.wait_ms(HOST, "carol", 0)


def test_who_guesses_at_a_user_who_has_logged_in_has_to_wait_too() -> None:
    attempts = FailedAttempts()
    attempts.succeeded(HOST, USER, 0)
    for _ in range(TOLERATED + 1):
        assert waits(attempts, 3) == [0, 0, 0]
        attempts.failed(HOST, USER, 0)
    assert waits(attempts, 3) == [0, 200, 400]
    attempts.succeeded(HOST, USER, 0)
    assert attempts.wait_ms(HOST, USER, 0) == 800, "a success takes nothing back"


def test_users_who_have_not_logged_in_for_longest_are_forgotten() -> None:
    attempts = FailedAttempts(users_max=2)
    for user in ("ann", "bob", "ann", "carol"):
        attempts.succeeded(HOST, user, 0)
    for _ in range(TOLERATED + 1):
        attempts.failed(HOST, "mallory", 0)
    assert waits(attempts, 2, user="mallory") == [0, 200]
    assert [attempts.wait_ms(HOST, user, 0) for user in ("ann", "carol", "bob")] == [0, 0, 400]


def test_memory_is_bounded() -> None:
    attempts = FailedAttempts(addresses_max=3)
    for index in range(10):
        attempts.failed(f"192.0.2.{index}", USER, 0)
    assert len(attempts) == 3
    for _ in range(TOLERATED + 1):
        attempts.failed("192.0.2.9", USER, 0)
    for index in range(2):
        attempts.failed(f"198.51.100.{index}", USER, 0)
    attempts.wait_ms("192.0.2.9", USER, 0)
    assert attempts.wait_ms("192.0.2.9", USER, 0) > 0, "it failed last, and is kept"


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
