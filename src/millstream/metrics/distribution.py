"""Distributions of measured values: counts in buckets, from which quantiles are computed.

Bucket bounds grow by a factor of 2^(1/4), so a quantile is at most 19 % too high, and memory does
not grow with the number of values. Quantiles cover the last one to two minutes: two windows are
kept, and the older one is dropped when the newer one is a minute old. Sum and count cover
everything since the start, as Prometheus expects of a summary.

Time is a parameter: seconds of any monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_left

WINDOW_SECONDS = 60.0
STEPS_PER_DOUBLING = 4


def growing_bounds(smallest: float, doublings: int) -> tuple[float, ...]:
    """Bucket bounds from `smallest` on."""
    steps = range(doublings * STEPS_PER_DOUBLING + 1)
    return tuple(smallest * 2 ** (step / STEPS_PER_DOUBLING) for step in steps)


SECONDS = growing_bounds(1e-6, 27)  # 1 microsecond to 134 seconds


class Distribution:
    """Values of one kind, such as the duration of requests."""

    __slots__ = ("_before", "_bounds", "_largest", "_now", "_window_ends", "count", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._now = [0.0] * (len(bounds) + 1)
        self._before = self._now
        self._window_ends = 0.0
        self._largest = 0.0
        self.count = 0.0
        self.sum = 0.0

    def note(self, value: float, now: float, weight: float = 1) -> None:
        """Add a value; one that was sampled counts for `weight` values."""
        if now >= self._window_ends:
            self._begin_window(now)
        self._now[bisect_left(self._bounds, value)] += weight
        self.count += weight
        self.sum += value * weight
        if value > self._largest:
            self._largest = value

    def _begin_window(self, now: float) -> None:
        empty = [0.0] * len(self._now)
        is_recent = now < self._window_ends + WINDOW_SECONDS
        self._before = self._now if is_recent else empty
        self._now = list(empty)
        self._window_ends = now + WINDOW_SECONDS

    def quantiles(self, shares: tuple[float, ...], now: float) -> list[float]:
        """One value per share, of recent values; NaN if there are none."""
        if now >= self._window_ends:
            self._begin_window(now)
        counts = [one + other for one, other in zip(self._now, self._before, strict=True)]
        total = sum(counts)
        return [self._quantile(counts, total, share) for share in shares]

    def _quantile(self, counts: list[float], total: float, share: float) -> float:
        if not total:
            return float("nan")
        wanted = total * share
        seen = 0.0
        for count, bound in zip(counts, self._bounds, strict=False):
            seen += count
            if count and seen >= wanted:
                return min(bound, self._largest)
        return self._largest


class Histogram:
    """Counts of values up to each of a few bounds, since the start: Prometheus' histogram."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one: above all bounds
        self.sum = 0.0

    def note(self, value: float, weight: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight
