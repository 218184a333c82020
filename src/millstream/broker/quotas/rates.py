"""Rates over a window of samples, and token buckets. Without I/O; the time is an argument.

    rate = SampledRate(WINDOW, bound)
    rate.record(size_bytes, now_ms)   -> how long to throttle, in ms; 0 within the bound

As in Kafka: the window has eleven samples of a second, ten whole ones and the current one. The rate
is what they hold divided by the time since the oldest began, which is at least ten seconds also for
a new client: so a client may use the quota of ten seconds at once. One that exceeds its bound is
throttled until the rate is the bound again, if nothing else is counted:

    throttle = (rate - bound) / bound * window

Samples begin at whole multiples of their size, so a rate depends only on what was counted when.
"""

from __future__ import annotations

from typing import NamedTuple

THROTTLE_MS_MAX = 2**31 - 1  # what throttle_time_ms can say
ROUNDING = 1e-9
LEASE_SHARE = 0.001  # of a window
LEASE_MAX = 65_536.0


class Window(NamedTuple):
    """How rates are measured."""

    samples: int = 11
    sample_ms: int = 1000

    @property
    def whole_ms(self) -> int:
        """The length of the window without the current sample; at least one sample."""
        return max(self.samples - 1, 1) * self.sample_ms


class SampledRate:
    """What one client has used, per second."""

    __slots__ = (
        "_allowed",
        "_amounts",
        "_current",
        "_number",
        "_sample_end_ms",
        "_window",
        "bound",
    )

    def __init__(self, window: Window, bound: float) -> None:
        self._window = window
        self.bound = bound
        self._amounts = [0.0] * window.samples  # by the number of the sample
        self._number = -1  # of the current sample, since time 0
        self._current = 0.0  # its amount; not yet in `_amounts`
        self._sample_end_ms = -1
        self._allowed = 0.0  # what the current sample may reach, whatever the time in it

    def record(self, amount: float, now_ms: int) -> int:
        """Count; returns for how many ms to throttle the client now."""
        if now_ms < self._sample_end_ms:
            self._current += amount
            if self._current <= self._allowed:
                return 0
        else:
            self._advance(now_ms)
            self._current += amount
        return self.throttle_ms(now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """The time after which the rate will be the bound again; 0 if it does not exceed it."""
        self._advance(now_ms)
        window_ms = self._window_ms(now_ms)
        used = self._total()
        allowed = self.bound * window_ms / 1000
        if used <= allowed:
            return 0
        if allowed <= 0:
            return THROTTLE_MS_MAX
        return max(1, round(min((used - allowed) / allowed * window_ms, THROTTLE_MS_MAX)))

    def per_second(self, now_ms: int) -> float:
        self._advance(now_ms)
        return self._total() * 1000 / self._window_ms(now_ms)

    def is_empty(self, now_ms: int) -> bool:
        """Whether nothing was counted within the window."""
        self._advance(now_ms)
        return not self._current and not any(self._amounts)

    @property
    def amount_max(self) -> float:
        """The amount of a whole window at the bound."""
        return self.bound * self._window.whole_ms / 1000

    @property
    def lease(self) -> float:
        """How much may be used before the next `record`: a thousandth of the window, while less
        than half of it is used, and nothing later."""
        if self._allowed - self._current <= self.amount_max / 2:
            return 0.0
        return min(self.amount_max * LEASE_SHARE, LEASE_MAX)

    def set_bound(self, bound: float) -> None:
        """Change the bound; what was counted stays."""
        self.bound = bound
        self._allow()

    def _advance(self, now_ms: int) -> None:
        """Begin the sample of this time, and forget those that are too old."""
        if now_ms < self._sample_end_ms:
            return
        samples, sample_ms = self._window
        number = now_ms // sample_ms
        if self._number >= 0:
            self._amounts[self._number % samples] = self._current
        for skipped in range(self._number + 1, min(number, self._number + samples) + 1):
            self._amounts[skipped % samples] = 0.0
        self._number = number
        self._current = 0.0
        self._sample_end_ms = (number + 1) * sample_ms
        self._amounts[number % samples] = 0.0
        self._allow()

    def _allow(self) -> None:
        self._allowed = self.amount_max - sum(self._amounts)

    def _total(self) -> float:
        return sum(self._amounts) + self._current

    def _window_ms(self, now_ms: int) -> int:
        """The time since the oldest sample began."""
        samples, sample_ms = self._window
        elapsed_ms = (samples - 1) * sample_ms + now_ms % sample_ms
        return max(elapsed_ms, self._window.whole_ms)


class Throttles:
    """How often and for how long a client was throttled: in all, and lately."""

    __slots__ = ("_samples", "_window", "count", "total_ms")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: list[tuple[int, int, int]] = []  # number, count and time; few have any
        self.count = 0
        self.total_ms = 0

    def record(self, throttle_ms: int, now_ms: int) -> None:
        self.count += 1
        self.total_ms += throttle_ms
        number = now_ms // self._window.sample_ms
        count, sum_ms = 1, throttle_ms
        if self._samples and self._samples[-1][0] == number:
            _, count_before, sum_before_ms = self._samples.pop()
            count, sum_ms = count + count_before, sum_ms + sum_before_ms
        self._samples.append((number, count, sum_ms))
        if len(self._samples) > self._window.samples:
            del self._samples[0]

    def average_ms(self, now_ms: int) -> float:
        """Of those within the window; 0 if there are none."""
        oldest = now_ms // self._window.sample_ms - self._window.samples
        recent = [(count, sum_ms) for number, count, sum_ms in self._samples if number > oldest]
        return sum(it for _, it in recent) / max(sum(it for it, _ in recent), 1)


class TokenBucket:
    """What a client may change: tokens come at the rate of the bound, and a full bucket holds those
    of a whole window (KIP-599). What was accepted may take more than there are: then nothing is
    accepted until the debt is paid."""

    __slots__ = ("_at_ms", "_seconds", "_tokens", "bound")

    def __init__(self, window: Window, bound: float, now_ms: int) -> None:
        self._seconds = window.samples * window.sample_ms / 1000
        self.bound = bound
        self._tokens = self._seconds * bound
        self._at_ms = now_ms

    def record(self, amount: float, now_ms: int) -> int:
        """Take tokens, or give them back; returns for how many ms to throttle the client now."""
        self._fill(now_ms)
        self._tokens = min(self._tokens - amount, self._seconds * self.bound)
        return self.throttle_ms(now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """The time until the debt is paid; 0 if there is none."""
        self._fill(now_ms)
        if self._tokens > -ROUNDING:
            return 0
        if self.bound <= 0:
            return THROTTLE_MS_MAX
        return max(1, round(min(-self._tokens / self.bound * 1000, THROTTLE_MS_MAX)))

    def tokens(self, now_ms: int) -> float:
        self._fill(now_ms)
        return self._tokens

    def set_bound(self, bound: float, now_ms: int) -> None:
        """Change the rate; a debt stays."""
        self._fill(now_ms)
        self.bound = bound
        self._fill(now_ms)

    def _fill(self, now_ms: int) -> None:
        elapsed_ms = max(now_ms - self._at_ms, 0)
        self._at_ms = max(now_ms, self._at_ms)
        full = self._seconds * self.bound
        self._tokens = min(self._tokens + self.bound * elapsed_ms / 1000, full)
