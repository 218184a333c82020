"""What a group's settings allow at one share partition, and how long a retry waits."""

from __future__ import annotations

from typing import NamedTuple

THROTTLED_DELIVERIES_MIN = 2


class Limits(NamedTuple):
    """The settings in force; every event may be judged by newer ones."""

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
        """The delivery count from which on smaller batches isolate the record that is at fault."""
        return max(THROTTLED_DELIVERIES_MIN, -(-self.delivery_count_max // 2))

    def is_last_attempt(self, delivery_count: int) -> bool:
        """Whether what was delivered so often gets its last chance next, and gets it alone."""
        return self.delivery_count_max > 2 and delivery_count == self.delivery_count_max - 1

    def backoff_after(self, delivery_count: int) -> int:
        """How long a record waits that was delivered so often, in ms."""
        if not self.backoff_ms:
            return 0
        try:
            wait_ms = self.backoff_ms * self.backoff_multiplier ** max(delivery_count - 1, 0)
        except OverflowError:
            return self.backoff_max_ms
        return int(min(wait_ms, self.backoff_max_ms))
