"""The coordinators of this broker: who keeps the state of a group, and how it is reached.

    groups          __consumer_offsets    classic and consumer groups, committed offsets
    transactions    __transaction_state   found here; its shards come with the transactions
    share groups    __share_group_state   likewise

A key (a group id, a transactional id, a share partition) belongs to the partition of the internal
topic that its hash names, and the broker that leads the partition coordinates it. The topic is made
when the first client asks for a coordinator.
"""

from __future__ import annotations

from enum import IntEnum

from millstream.broker.configs import ConfigManager
from millstream.broker.coordinator_shell import partition_for
from millstream.broker.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from millstream.broker.group_lag import GroupLag
from millstream.broker.metadata import MetadataStore
from millstream.broker.partitions import PartitionTable
from millstream.broker.timers import Timers
from millstream.broker.topics import TopicManager
from millstream.clock import Clock
from millstream.coordination.cluster import BrokerImage, ClusterImage
from millstream.errors import ApiError, ErrorCode


class CoordinatorKind(IntEnum):
    """What FindCoordinator can ask for, with the wire's numbers."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


TOPIC_OF: dict[CoordinatorKind, str] = {
    CoordinatorKind.GROUP: OFFSETS_TOPIC,
    CoordinatorKind.TRANSACTION: "__transaction_state",
    CoordinatorKind.SHARE: "__share_group_state",
}


class Coordinators:
    """All coordinators of this broker, on one set of timers."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        configs: ConfigManager,
        topics: TopicManager,
        partitions: PartitionTable,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._topics = topics
        self._timers = Timers(clock)
        self.groups = GroupCoordinator(metadata, configs, partitions, self._timers, clock)
        self.lag = GroupLag(self.groups, partitions, configs)

    def start(self) -> None:
        """Load what is there, in the background; call it on the event loop."""
        self._metadata.subscribe(self._metadata_changed)
        self.groups.lead_all()

    async def stop(self) -> None:
        self.lag.stop()
        await self.groups.stop()
        self._timers.close()

    async def find(self, kind: CoordinatorKind, key: str) -> BrokerImage:
        """The broker that coordinates this key. Raises COORDINATOR_NOT_AVAILABLE."""
        name = TOPIC_OF[kind]
        topic = self._metadata.image.topics.get(name) or await self._topics.auto_create(name)
        partition = topic.partitions[partition_for(key, len(topic.partitions))]
        broker = self._metadata.image.brokers.get(partition.leader)
        if broker is None or broker.fenced:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"No broker leads the partition of {name} that {key!r} belongs to.",
            )
        return broker

    def _metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        if now.topics is not before.topics:
            self.groups.topics_changed(before, now)
