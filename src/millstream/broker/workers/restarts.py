"""When a worker that died is started again: at once, unless it keeps dying."""

from __future__ import annotations

STABLE_SECONDS = 10.0  # a worker that has served for that long is started again at once
FIRST_DELAY_SECONDS = 0.2
DELAY_SECONDS_MAX = 30.0


class Restarts:
    """The delays of one worker."""

    def __init__(self) -> None:
        self._delay = 0.0

    def delay_after(self, served_seconds: float) -> float:
        """How long to wait before the next start of a worker that has served for this time."""
        if served_seconds >= STABLE_SECONDS:
            self._delay = 0.0
        delay = self._delay
        self._delay = min(max(delay * 2, FIRST_DELAY_SECONDS), DELAY_SECONDS_MAX)
        return delay
