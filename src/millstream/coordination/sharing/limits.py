"""Limits of a share partition from its group's settings, and the retry delay."""

from __future__ import annotations

from typing import NamedTuple

THROTTLED_DELIVERIES_MIN = 2


class Limits(NamedTuple):
    """The current settings; each event may use newer ones."""

    lock_duration_ms: int = 30_000
    record_locks_max: int = 2_000
    delivery_count_max: int = 5
    can_renew: bool = True
    has_dead_letters: bool = False
    backoff_ms: int = 0  # 0: no delayed retry
    backoff_max_ms: int = 60_000
    backoff_multiplier: float = 2.0
    delayed_max: int = 10_000

    @property
    def throttled_from(self) -> int:
        """The delivery count from which smaller batches isolate the failing record."""
        return max(THROTTLED_DELIVERIES_MIN, -(-self.delivery_count_max // 2))

    def is_last_attempt(self, delivery_count: int) -> bool:
        """Whether the next delivery is the last, and therefore made alone."""
        return self.delivery_count_max > 2 and delivery_count == self.delivery_count_max - 1

    def backoff_after(self, delivery_count: int) -> int:
        """The delay after that many deliveries, in ms."""
        if not self.backoff_ms:
            return 0
        try:
            wait_ms = self.backoff_ms * self.backoff_multiplier ** max(delivery_count - 1, 0)
        except OverflowError:
            return self.backoff_max_ms
        return int(min(wait_ms, self.backoff_max_ms))
