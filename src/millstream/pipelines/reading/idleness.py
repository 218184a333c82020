"""Ticks of a source that is idle: `idleAfter`.

Spark's watermark follows the rows of a source, so it stops when none come, and the windows and
joins of all other sources wait. Only the reader knows whether a source is idle or the query is just
behind: a source is idle if the query has read all of its records, those of open transactions
included. After it has been idle for `idleAfter`, the reader emits a tick: a row with `_idle` true
whose time, the column `idleColumn`, is `idleAfter` ago. All other columns are null.

The time of the last tick is part of the source's offsets (offsets.py), so a replayed batch has the
same tick. Ticks are at least a tenth of `idleAfter` apart, since each is a batch. A query that ends
when all is read (`availableNow`) has none.
"""

from __future__ import annotations

from millstream.clock import Clock

TICK_MS_MIN = 1_000


class IdleWatch:
    """Decides when a source that has nothing to read ticks."""

    def __init__(self, idle_after_ms: int, clock: Clock) -> None:
        self._idle_after_ms = idle_after_ms
        self._clock = clock
        self._idle_since_ms: int | None = None

    def next_tick_ms(self, last_ms: int | None, *, is_at_end: bool) -> int | None:
        """The time of a tick that is due now; None if there is none."""
        now_ms = self._clock.monotonic_ms()
        if not is_at_end:
            self._idle_since_ms = None
            return None
        if self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        if now_ms - self._idle_since_ms < self._idle_after_ms:
            return None
        tick_ms = self._clock.now_ms() - self._idle_after_ms
        step_ms = max(self._idle_after_ms // 10, TICK_MS_MIN)
        return tick_ms if last_ms is None or tick_ms - last_ms >= step_ms else None
