"""The roles of this broker's replicas, as the reconciler sets them: who fetches, who proposes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.broker.replicas.in_sync import ReplicaSettings
from millstream.broker.replication.fetchers import Fetcher
from millstream.broker.replication.in_sync_changes import InSyncChanges
from millstream.broker.replication.throttles import Throttles

if TYPE_CHECKING:
    from millstream.broker.metadata.actions import ClusterActions
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataLog
    from millstream.broker.peers.peers import Peers
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.coordination.cluster import ClusterImage
    from millstream.storage.directory import LogDirectory
    from millstream.storage.log import Log

LANE = "fetcher"


class Replication:
    """All partitions with several replicas. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        actions: ClusterActions,
        configs: ConfigManager,
        partitions: PartitionTable,
        peers: Peers,
        tasks: Tasks,
        clock: Clock,
        on_directory_failed: Callable[[list[Log]], None],
    ) -> None:
        self._metadata = metadata
        self._configs = configs
        self._partitions = partitions
        self._peers = peers
        self._tasks = tasks
        self._clock = clock
        self._on_directory_failed = on_directory_failed
        self._changes = InSyncChanges(partitions, actions, configs, clock)
        self.throttles = Throttles(configs, clock)
        self._fetchers: dict[int, Fetcher] = {}
        self._fetched_by: dict[Partition, Fetcher] = {}
        self._is_stopped = False
        self.retake_role: Callable[[Partition], None] = lambda partition: None

    def settings(self, image: ClusterImage) -> ReplicaSettings:
        """For a leader of a partition with several replicas."""
        if not self._is_stopped:
            self._changes.start()
        return ReplicaSettings(
            self._configs.broker_id,
            self._configs.current.replica_lag_time_max_ms,
            _active(image),
            lambda: self._metadata.is_live,
            self._changes.propose_soon,
        )

    def follow(self, partition: Partition, leader: int) -> None:
        if self._is_stopped:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                self._peers.peer(leader, LANE),
                metadata=self._metadata,
                configs=self._configs,
                tasks=self._tasks,
                clock=self._clock,
                throttle=self.throttles.follower,
                on_directory_failed=self._on_directory_failed,
                retake_role=lambda partition: self.retake_role(partition),
            )
        self._fetched_by[partition] = fetcher
        fetcher.add(partition)

    def unfollow(self, partition: Partition) -> None:
        fetcher = self._fetched_by.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)

    def cannot_write(self, full: Iterable[LogDirectory] = ()) -> None:
        """A log directory has failed, or these are full: let others lead its partitions."""
        if self._metadata.has_controller and not self._is_stopped:
            self._changes.leave_soon(full)

    def brokers_changed(self, image: ClusterImage) -> None:
        active = _active(image)
        for partition in self._partitions:
            if partition.in_sync is not None:
                partition.in_sync.brokers_changed(active)

    async def stop(self) -> None:
        """Fetch and propose nothing more."""
        self._is_stopped = True
        await self._changes.stop()
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))


def _active(image: ClusterImage) -> dict[int, int]:
    """The brokers that may join in-sync sets, with their epochs."""
    return {broker.id: broker.epoch for broker in image.brokers.values() if broker.is_active}
