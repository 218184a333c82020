"""The throttles of this broker's replication: one for what it sends as a leader, one for what it
fetches as a follower. Rates are settings of the broker, throttled replicas those of topics, and
both can change at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.coordination.replication.throttle import (
    UNLIMITED,
    ByteQuota,
    throttled_partitions,
)

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig
    from millstream.config.topic import TopicConfig


class Throttle:
    """One direction."""

    def __init__(
        self,
        configs: ConfigManager,
        clock: Clock,
        rate_of: Callable[[BrokerConfig], int],
        replicas_of: Callable[[TopicConfig], tuple[str, ...]],
    ) -> None:
        self._configs = configs
        self._clock = clock
        self._rate_of = rate_of
        self._replicas_of = replicas_of
        self._quota = ByteQuota()

    @property
    def is_on(self) -> bool:
        return self._rate_of(self._configs.current) < UNLIMITED

    def applies_to(self, topic: str, index: int) -> bool:
        """Whether the replica of this partition on this broker is throttled while it, or the
        replica that fetches from it, is not in sync."""
        if not self.is_on:
            return False
        replicas = self._replicas_of(self._configs.topic(topic))
        partitions = throttled_partitions(replicas, self._configs.broker_id)
        return partitions is None or index in partitions

    def wait_ms(self) -> int:
        """The time until more may be transferred; 0: now."""
        if not self.is_on:
            return 0
        rate = self._rate_of(self._configs.current)
        return self._quota.wait_ms(rate, self._clock.monotonic_ms())

    def record(self, size_bytes: int) -> None:
        """Bytes of throttled replicas were transferred."""
        rate = self._rate_of(self._configs.current)
        self._quota.record(size_bytes, rate, self._clock.monotonic_ms())


class Throttles:
    """Both directions."""

    def __init__(self, configs: ConfigManager, clock: Clock) -> None:
        self.leader = Throttle(
            configs,
            clock,
            lambda broker: broker.leader_replication_throttled_rate,
            lambda topic: topic.leader_replication_throttled_replicas,
        )
        self.follower = Throttle(
            configs,
            clock,
            lambda broker: broker.follower_replication_throttled_rate,
            lambda topic: topic.follower_replication_throttled_replicas,
        )
