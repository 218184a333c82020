"""Replication throttles: how many bytes per second replicas that catch up may transfer.

    quota = ByteQuota()
    quota.record(size_bytes, rate, now_ms)      bytes were transferred
    quota.wait_ms(rate, now_ms)              -> 0: transfer more; otherwise ask again after that

The quota counts bytes that were transferred too early: they are a debt that is paid off at the
rate, and nothing is transferred while there is one. So a transfer may be larger than the rate, the
average is the rate, and unused time is not saved up. Kafka measures the rate over eleven seconds
instead, which gives the same average. The rate is an argument: it can change at any time.

Only replicas that are listed in the settings of their topic, and are not in sync, are throttled.
"""

from __future__ import annotations

import math
from functools import lru_cache

EVERY_REPLICA = "*"
UNLIMITED = 2**63 - 1  # the default of the rates
NEVER_MS = 2**62  # the wait at a rate of 0


class ByteQuota:
    """See the module."""

    __slots__ = ("_debt_bytes", "_now_ms")

    def __init__(self) -> None:
        self._debt_bytes = 0.0
        self._now_ms = 0  # when the debt was that

    def record(self, size_bytes: int, rate: int, now_ms: int) -> None:
        self._pay(rate, now_ms)
        self._debt_bytes += size_bytes

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """The time until more may be transferred; 0: now."""
        if rate == 0:
            return NEVER_MS
        self._pay(rate, now_ms)
        return math.ceil(self._debt_bytes * 1000 / rate)

    def _pay(self, rate: int, now_ms: int) -> None:
        if self._debt_bytes:
            paid = rate * max(now_ms - self._now_ms, 0) / 1000
            self._debt_bytes = max(self._debt_bytes - paid, 0.0)
        self._now_ms = now_ms


@lru_cache(maxsize=256)
def throttled_partitions(replicas: tuple[str, ...], broker_id: int) -> frozenset[int] | None:
    """The partitions of a topic that are throttled on this broker; None: all of them. `replicas`
    is a setting of the topic: partition:broker, ..., or *."""
    if replicas == (EVERY_REPLICA,):
        return None
    pairs = (replica.split(":") for replica in replicas)
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)
