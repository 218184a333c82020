"""How long a request of a producer may be held.

A client gives up on a request after its time-out (30 s by default), and begins to count when it
sends it. It may have sent several: those behind a request that is held wait as long, unread. So it
is not enough to limit each hold. A request was sent after the answer to the fifth before it, by
clients with at most five requests in flight, so it has waited at most for the last four holds of
its connection and its own: together these take at most `HOLD_MS_MAX`.

A request that cannot be held any longer is refused, and its client is throttled for a moment, so
that it does not retry at once. That takes time of the requests behind it too, at most
`THROTTLE_MS_MAX` each.
"""

from __future__ import annotations

from collections import deque

HOLD_MS_MAX = 10_000
IN_FLIGHT = 5  # max.in.flight.requests.per.connection of idempotent producers
THROTTLE_MS_MAX = 1_000  # after a request that is refused
THROTTLE_SHARE = 4 * IN_FLIGHT  # of a request's time-out: all in flight take a quarter of it
PAUSE_MS = 1_000  # without a hold: nothing that was sent before still waits


class HoldBudget:
    """The holds of one connection. Times are monotonic."""

    __slots__ = ("_ended_ms", "_holds_ms")

    def __init__(self) -> None:
        self._holds_ms: deque[int] = deque(maxlen=IN_FLIGHT - 1)
        self._ended_ms = 0  # when the last hold ended

    def left_ms(self, timeout_ms: int, now_ms: int) -> int:
        """How long a request may be held now; half of the time-out that it names is the most."""
        if self._holds_ms and now_ms - self._ended_ms >= PAUSE_MS:
            self._holds_ms.clear()
        limit_ms = min(HOLD_MS_MAX, timeout_ms // 2)
        return max(limit_ms - sum(self._holds_ms), 0)

    def spent(self, held_ms: int, now_ms: int) -> None:
        """A request was held for this time, which may be 0, and is answered now."""
        self._holds_ms.append(held_ms)
        if held_ms:
            self._ended_ms = now_ms

    def throttle(self, timeout_ms: int, now_ms: int) -> int:
        """The request that was answered last is refused: for how long its client is throttled."""
        throttle_ms = min(THROTTLE_MS_MAX, timeout_ms // THROTTLE_SHARE)
        last_ms = self._holds_ms.pop() if self._holds_ms else 0
        self._holds_ms.append(last_ms + throttle_ms)
        self._ended_ms = now_ms + throttle_ms
        return throttle_ms
