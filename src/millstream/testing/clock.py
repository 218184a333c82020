"""A clock that a test owns."""

from __future__ import annotations


class ManualClock:
    """Time stands still until `advance` moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Let both clocks run."""
        if milliseconds < 0:
            raise ValueError("time does not run backwards; use `set_now` for a clock that is reset")
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def set_now(self, now_ms: int) -> None:
        """Set the wall clock, as an administrator would; the monotonic one does not notice."""
        self._now_ms = now_ms
