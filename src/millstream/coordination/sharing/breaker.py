"""Rate limit for the dead letters of a share group.

A bad release that rejects everything must not copy a whole topic to the dead-letter topic within a
minute. So each group has a token bucket, with a token per dead letter. It holds the tokens of ten
seconds and fills at the rate of the limit:

    closed   letters pass at once
    open     from the first letter that finds no token until the bucket is half full again: letters
             wait for their turn, in their order, none is lost

Half full rather than not empty, so that it does not open and close with every letter of a flood.
"""

from __future__ import annotations

BURST_SECONDS = 10


class Breaker:
    """A bucket of tokens; times are monotonic milliseconds."""

    def __init__(self, records_per_second: int, now_ms: int) -> None:
        self.records_per_second = records_per_second
        self.opened_at_ms: int | None = None
        self.delayed_records = 0  # since it opened
        self._tokens = float(self._capacity)
        self._filled_at_ms = now_ms

    @property
    def is_open(self) -> bool:
        return self.opened_at_ms is not None

    def change_limit(self, records_per_second: int, now_ms: int) -> None:
        """Change the limit; letters that are already waiting keep their delay."""
        if records_per_second != self.records_per_second:
            self._fill(now_ms)
            self.records_per_second = records_per_second

    def admit(self, records: int, now_ms: int) -> int:
        """Take a token per record; returns how long they must wait."""
        self._fill(now_ms)
        self._tokens -= records
        wait_ms = self._time_to_reach_ms(0)
        if wait_ms > 0:
            self.delayed_records += records
            if self.opened_at_ms is None:
                self.opened_at_ms = now_ms
        return wait_ms

    def give_back(self, records: int) -> None:
        """Return the tokens of records that were admitted but not written."""
        self._tokens = min(float(self._capacity), self._tokens + records)

    def closes_in_ms(self, now_ms: int) -> int:
        """How long the breaker stays open without further letters; 0 if it can be closed."""
        self._fill(now_ms)
        return self._time_to_reach_ms(self._capacity / 2) if self.is_open else 0

    def close(self) -> None:
        """Close the breaker."""
        self.opened_at_ms = None
        self.delayed_records = 0

    def is_idle(self, now_ms: int) -> bool:
        """Whether it is equivalent to a new breaker."""
        self._fill(now_ms)
        return not self.is_open and self._tokens >= self._capacity

    @property
    def _capacity(self) -> int:
        return self.records_per_second * BURST_SECONDS

    def _fill(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._filled_at_ms
        filled = self._tokens + elapsed_ms * self.records_per_second / 1000
        self._tokens = min(float(self._capacity), filled)
        self._filled_at_ms = now_ms

    def _time_to_reach_ms(self, tokens: float) -> int:
        missing = tokens - self._tokens
        return max(0, -int(-missing * 1000 // self.records_per_second))
