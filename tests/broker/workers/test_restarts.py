"""When workers are started again."""

from __future__ import annotations

from millstream.broker.workers.restarts import (
    DELAY_SECONDS_MAX,
    FIRST_DELAY_SECONDS,
    STABLE_SECONDS,
    Restarts,
)


def test_first_restart_is_at_once() -> None:
    assert Restarts().delay_after(0.0) == 0


def test_worker_that_keeps_dying_waits_longer_up_to_a_limit() -> None:
    restarts = Restarts()
    delays = [restarts.delay_after(1.0) for _ in range(20)]
    assert delays[:4] == [0, FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert delays == sorted(delays)
    assert delays[-1] == DELAY_SECONDS_MAX


def test_worker_that_has_served_for_long_is_restarted_at_once() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.delay_after(0.0)
    assert restarts.delay_after(STABLE_SECONDS) == 0
    assert restarts.delay_after(0.0) == FIRST_DELAY_SECONDS
