"""Injected time.

Pure code takes `now_ms`; the rest gets a `Clock`, so that tests control time
(`millstream.testing.clock.ManualClock`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch, for timestamps."""
        ...

    def monotonic_ms(self) -> int:
        """Monotonic time in milliseconds, for timeouts."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
