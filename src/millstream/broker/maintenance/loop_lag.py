"""Measures the lag of the event loop: how late it runs due timers.

A timer fires ten times a second and records its delay. This costs a few microseconds, and always
detects stalls of 100 ms or more, shorter ones by chance. Delays are counted in buckets whose bounds
double, so that a percentile needs no list: it is exact to a factor of two.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import NamedTuple

from millstream.metrics.distribution import Histogram

INTERVAL_SECONDS = 0.1
BOUNDS_MS = tuple(0.25 * (1 << power) for power in range(20))  # the last bucket has all above 131 s


class LagSummary(NamedTuple):
    """Delays since the last summary, in milliseconds."""

    samples: int
    p99_ms: float  # of its bucket the upper bound, or the largest delay if that is smaller
    max_ms: float


class LoopLag:
    """Measures the delays of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._max_ms = 0.0
        self.delays = Histogram(tuple(bound / 1000 for bound in BOUNDS_MS))  # seconds, of all

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, delay_ms: float) -> None:
        self._counts[bisect_left(BOUNDS_MS, delay_ms)] += 1
        self._max_ms = max(self._max_ms, delay_ms)
        self.delays.note(delay_ms / 1000)

    def take_summary(self) -> LagSummary:
        """The delays since the last call; counting starts again."""
        counts, largest = self._counts, self._max_ms
        self._counts = [0] * len(counts)
        self._max_ms = 0.0
        return LagSummary(sum(counts), min(_percentile(counts, 0.99), largest), largest)

    def _schedule(self) -> None:
        self._due = self._loop.time() + INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self.note(max(self._loop.time() - self._due, 0.0) * 1000)
        self._schedule()


def _percentile(counts: list[int], share: float) -> float:
    wanted = sum(counts) * share
    seen = 0
    for count, bound in zip(counts, BOUNDS_MS, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")
