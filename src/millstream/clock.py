"""Time as an argument.

Nothing below the shell reads a clock: the pure cores take `now_ms`, and the shell is handed a
`Clock`, so that a test can own time (`millstream.testing.clock.ManualClock`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch: what timestamps are made of."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never run backwards: what time-outs are made of."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
