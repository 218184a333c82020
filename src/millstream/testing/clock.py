"""A clock controlled by a test."""

from __future__ import annotations


class ManualClock:
    """Time moves only by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Advance both clocks."""
        if milliseconds < 0:
            raise ValueError("time does not run backwards; use `set_now` for a clock that is reset")
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def set_now(self, now_ms: int) -> None:
        """Set the wall clock; the monotonic clock is not affected."""
        self._now_ms = now_ms
