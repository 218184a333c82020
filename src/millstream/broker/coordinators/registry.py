"""The coordinators of this broker, and how to find the coordinator of a key.

    groups          __consumer_offsets    groups of all kinds, committed offsets
    transactions    __transaction_state   transactional ids and their transactions
    share groups    __share_group_state   state of share partitions

A key (a group id, a transactional id, a share partition) belongs to a partition of the internal
topic, by its hash, and the leader of that partition is its coordinator. The topic is created when
the first client asks for a coordinator.

The code of the coordinators is large, and many brokers never need it. So it is imported here, not
above: at start if there are groups or transactions, otherwise with the first FindCoordinator
(docs/decisions/0008-start-up.md).
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from millstream.broker.coordinators.key_hash import partition_for
from millstream.broker.coordinators.timers import Timers
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.store import MetadataStore
from millstream.broker.metadata.topics import TopicManager
from millstream.broker.peers.leaders import leader_of
from millstream.broker.replicas.table import PartitionTable
from millstream.clock import Clock
from millstream.coordination.cluster import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    BrokerImage,
    ClusterImage,
    TopicImage,
)
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import CoordinatorKind

if TYPE_CHECKING:
    from millstream.broker.coordinators.groups import GroupCoordinator
    from millstream.broker.coordinators.lag import GroupLag
    from millstream.broker.coordinators.share_groups import ShareGroupCoordinator
    from millstream.broker.coordinators.share_routing import RoutedPersister
    from millstream.broker.coordinators.share_state import SharePersister
    from millstream.broker.coordinators.transactions import TransactionCoordinator
    from millstream.broker.coordinators.verification import TransactionVerifier
    from millstream.broker.metadata.producer_ids import ProducerIds
    from millstream.broker.peers.markers import RemoteMarkers
    from millstream.broker.peers.peers import Peers
    from millstream.broker.replicas.pending import PendingAppend
    from millstream.coordination.transactions.marker import TransactionMarker


TOPIC_OF: dict[CoordinatorKind, str] = {
    CoordinatorKind.GROUP: OFFSETS_TOPIC,
    CoordinatorKind.TRANSACTION: TRANSACTIONS_TOPIC,
    CoordinatorKind.SHARE: SHARE_STATE_TOPIC,
}
MODULE_OF: dict[CoordinatorKind, str] = {
    CoordinatorKind.GROUP: "millstream.broker.coordinators.lag",  # imports the coordinator, too
    CoordinatorKind.TRANSACTION: "millstream.broker.coordinators.transactions",
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
        producer_ids: ProducerIds,
        peers: Peers,
        clock: Clock,
    ) -> None:
        self.partitions = partitions
        self._metadata = metadata
        self._configs = configs
        self._topics = topics
        self._producer_ids = producer_ids
        self._peers = peers
        self._broker_id = configs.broker_id
        self._clock = clock
        self._timers = Timers(clock)
        # Held until all logs of the topic are open, which is after the topic is created.
        self._creations = {kind: asyncio.Lock() for kind in CoordinatorKind}
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._lag: GroupLag | None = None
        self._share_state: SharePersister | None = None
        self._share_persister: RoutedPersister | None = None
        self._share_groups: ShareGroupCoordinator | None = None
        self._remote_markers: RemoteMarkers | None = None
        self._verifier: TransactionVerifier | None = None

    def start(self) -> None:
        """Load existing shards in the background; call it on the event loop."""
        self._metadata.subscribe(self._metadata_changed)
        if OFFSETS_TOPIC in self._metadata.image.topics:
            self.groups.load_all()
        if TRANSACTIONS_TOPIC in self._metadata.image.topics:
            self.transactions.load_all()
        if SHARE_STATE_TOPIC in self._metadata.image.topics:
            self.share_state.load_all()

    async def share_state_loaded(self) -> None:
        """Wait until the state of share groups is loaded, if there is any."""
        if self._share_state is not None:
            await self._share_state.all_loaded()

    async def stop(self) -> None:
        if self._transactions is not None:
            await self._transactions.stop()
        if self._share_groups is not None:
            await self._share_groups.stop()
        if self._lag is not None:
            self._lag.stop()
        if self._share_state is not None:
            await self._share_state.stop()
        if self._groups is not None:
            await self._groups.stop()
        self._timers.close()

    @property
    def groups(self) -> GroupCoordinator:
        if self._groups is None:
            from millstream.broker.coordinators.groups import GroupCoordinator

            self._groups = GroupCoordinator(
                OFFSETS_TOPIC,
                self._metadata,
                self._configs,
                self.partitions,
                self._timers,
                self._clock,
            )
        return self._groups

    @property
    def active_groups(self) -> GroupCoordinator | None:
        """The coordinator of groups, if there was need for one; its code is not loaded for this."""
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        if self._transactions is None:
            from millstream.broker.coordinators.transactions import TransactionCoordinator

            self._transactions = TransactionCoordinator(
                TRANSACTIONS_TOPIC,
                self._metadata,
                self._configs,
                self.partitions,
                self._producer_ids,
                self.write_own_marker,
                self._timers,
                self._clock,
            )
        return self._transactions

    @property
    def lag(self) -> GroupLag:
        if self._lag is None:
            from millstream.broker.coordinators.lag import GroupLag
            from millstream.broker.peers.partitions import RemotePartitions

            self._lag = GroupLag(
                self.groups,
                self.partitions,
                self._configs,
                self._metadata,
                RemotePartitions(self._peers),
            )
        return self._lag

    @property
    def share_groups(self) -> ShareGroupCoordinator:
        if self._share_groups is None:
            from millstream.broker.coordinators.share_groups import ShareGroupCoordinator

            self._share_groups = ShareGroupCoordinator(self.groups, self.share_persister)
        return self._share_groups

    @property
    def share_persister(self) -> RoutedPersister:
        """The state of all share partitions, kept by this broker or by others."""
        if self._share_persister is None:
            from millstream.broker.coordinators.share_routing import RoutedPersister
            from millstream.broker.peers.share_state import RemoteShareState

            self._share_persister = RoutedPersister(
                self._broker_id,
                self._metadata,
                self.share_state,
                RemoteShareState(self._peers),
                partial(self._topic, CoordinatorKind.SHARE),
            )
        return self._share_persister

    @property
    def verifier(self) -> TransactionVerifier:
        """Asks the transaction coordinators of other brokers."""
        if self._verifier is None:
            from millstream.broker.coordinators.verification import TransactionVerifier
            from millstream.broker.peers.verification import RemoteTransactions

            self._verifier = TransactionVerifier(
                self._metadata, self._configs, RemoteTransactions(self._peers)
            )
        return self._verifier

    @property
    def share_state(self) -> SharePersister:
        """The share state that this broker keeps."""
        if self._share_state is None:
            from millstream.broker.coordinators.share_state import SharePersister

            self._share_state = SharePersister(
                SHARE_STATE_TOPIC,
                self._metadata,
                self._configs,
                partial(self._topic, CoordinatorKind.SHARE),
                self.partitions,
                self._timers,
                self._clock,
            )
        return self._share_state

    def write_marker(self, topic: str, index: int, marker: TransactionMarker) -> PendingAppend:
        """End a transaction in one partition; done when the marker is durable.

        The one way to a partition. Raises `ApiError` where the marker is refused.
        """
        partition = self.partitions.find(topic, index)
        if topic == OFFSETS_TOPIC:  # its coordinator has to know which offsets count from now on
            return self.groups.complete_transaction(index, marker)
        return partition.append_marker(**marker._asdict())

    def write_own_marker(self, topic: str, index: int, marker: TransactionMarker) -> PendingAppend:
        """The same for a coordinator of this broker, to a partition of any broker.

        A partition may have seen a higher coordinator epoch: an administrator's WriteTxnMarkers may
        name any, and Kafka takes it. The marker carries that one then, if no other broker can have
        replaced this coordinator. With its own it would be refused, and a commit that is decided
        would never be seen there.
        """
        image = self._metadata.image.partition(topic, index)
        if image is not None and image.leader != self._broker_id:
            leader = leader_of(self._metadata.image, topic, index)
            return self._other_brokers_markers().write(leader, topic, index, marker)
        partition = self.partitions.find(topic, index)
        if self._is_only_transaction_coordinator():
            epoch = partition.coordinator_epoch_of(marker.producer_id)
            marker = marker._replace(coordinator_epoch=max(marker.coordinator_epoch, epoch))
        return self.write_marker(topic, index, marker)

    def _is_only_transaction_coordinator(self) -> bool:
        """Whether transactions have no other replica that could be elected."""
        partition = self._metadata.image.partition(TRANSACTIONS_TOPIC, 0)
        return partition is None or len(partition.replicas) == 1

    def _other_brokers_markers(self) -> RemoteMarkers:
        if self._remote_markers is None:
            from millstream.broker.peers.markers import RemoteMarkers

            self._remote_markers = RemoteMarkers(asyncio.get_running_loop(), self._peers)
        return self._remote_markers

    def check_lag(self, now_ms: int) -> None:
        """Check for groups whose unread records expire soon."""
        if self._groups is not None:
            self.lag.check(now_ms)

    async def find(self, kind: CoordinatorKind, key: str) -> BrokerImage:
        """The broker that coordinates this key. Raises COORDINATOR_NOT_AVAILABLE."""
        name = TOPIC_OF[kind]
        if kind in MODULE_OF and MODULE_OF[kind] not in sys.modules:
            # The import is slow; in a thread it does not block other clients.
            await asyncio.to_thread(import_module, MODULE_OF[kind])
        index = await self.partition_of(kind, key)
        partition = self._metadata.image.topics[name].partitions[index]
        broker = self._metadata.image.brokers.get(partition.leader)
        if broker is None or broker.fenced:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"The partition of {name} for {key!r} has no leader.",
            )
        return broker

    async def partition_of(self, kind: CoordinatorKind, key: str) -> int:
        """The partition of the internal topic for a key; creates the topic if needed."""
        topic = await self._topic(kind)
        return partition_for(key, len(topic.partitions))

    async def _topic(self, kind: CoordinatorKind) -> TopicImage:
        """The internal topic, with all its logs; creates it if needed."""
        name, creation = TOPIC_OF[kind], self._creations[kind]
        topic = self._metadata.image.topics.get(name)
        if topic is None or creation.locked():
            async with creation:
                outcome = (await self._topics.auto_create([name]))[name]
            if isinstance(outcome, ApiError):
                raise outcome
            return outcome
        return topic

    def _metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        if now.topics is before.topics:
            return
        if self._groups is not None or OFFSETS_TOPIC in now.topics:
            self.groups.topics_changed(before, now)
        if self._transactions is not None or TRANSACTIONS_TOPIC in now.topics:
            self.transactions.load_all()
        if self._share_state is not None or SHARE_STATE_TOPIC in now.topics:
            self.share_state.topics_changed(before, now)
