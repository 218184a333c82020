"""The machine's clocks, in the unit that everything else counts in."""

from __future__ import annotations

import time

from millstream.clock import Clock, SystemClock
from millstream.testing.clock import ManualClock


def test_system_clock_counts_milliseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1_000_000
    now_ms = SystemClock().now_ms()
    assert before <= now_ms <= time.time_ns() // 1_000_000


def test_system_clock_never_runs_backwards() -> None:
    clock = SystemClock()
    readings = [clock.monotonic_ms() for _ in range(1000)]
    assert readings == sorted(readings)


def test_clocks_are_interchangeable() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(isinstance(clock.now_ms(), int) for clock in clocks)
