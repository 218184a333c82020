"""The backlog policies of this broker's topics: nothing, until a topic has one.

The rest of the package is imported with the first policy (docs/decisions/0008-start-up.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.backlog.counters import BacklogCounters
from millstream.config.backlog import has_policy
from millstream.coordination.cluster import ResourceType

if TYPE_CHECKING:
    from millstream.broker.backlog.monitor import BacklogMonitor
    from millstream.broker.coordinators.registry import Coordinators
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.peers.peers import Peers
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.coordination.cluster import ClusterImage
    from millstream.storage.directories import LogDirectories


class PartitionBacklog(NamedTuple):
    """A partition under a policy, as it was measured last."""

    topic: str
    partition: int
    policy: str
    is_over: bool  # whether the policy applies: producers are held or rejected, records dropped
    group: str  # the slowest; empty if no group is behind
    size_bytes: int
    age_ms: int  # 0 unless the policy has a bound on it


class BacklogPolicies:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        coordinators: Coordinators,
        peers: Peers,
        directories: LogDirectories,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self.counters = BacklogCounters()
        self.is_used = False  # whether a topic has had a policy since the start
        self.held_bytes = 0  # of the requests that are held now
        self._metadata = metadata
        self._configs = configs
        self._partitions = partitions
        self._coordinators = coordinators
        self._peers = peers
        self._directories = directories
        self._tasks = tasks
        self._clock = clock
        self._monitor: BacklogMonitor | None = None

    def start(self) -> None:
        """Call it on the event loop, when partitions and coordinators have been started."""
        self._metadata.subscribe(self._metadata_changed)
        self._look(self._metadata.image)

    def partitions(self) -> Iterator[PartitionBacklog]:
        """All partitions under a policy that this broker leads."""
        for watch in self._monitor.watches if self._monitor is not None else ():
            backlog, partition = watch.state.backlog, watch.partition
            yield PartitionBacklog(
                partition.topic,
                partition.index,
                watch.policy.kind,
                watch.state.is_over,
                "" if backlog is None else backlog.group,
                0 if backlog is None else backlog.size_bytes,
                0 if backlog is None else backlog.age_ms,
            )

    def offsets_committed(self) -> None:
        """A group has committed offsets: producers that wait for it may continue."""
        if self._monitor is not None:
            self._monitor.measure_soon()

    def _metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        if now.configs is not before.configs or (self.is_used and now.topics is not before.topics):
            self._look(now)

    def _look(self, image: ClusterImage) -> None:
        if self._monitor is None:
            topics = (it for it in image.configs if it.type is ResourceType.TOPIC)
            if not any(has_policy(image.topic_overrides(it.name)) for it in topics):
                return
            self._monitor = self._new_monitor()
            self.is_used = True
        self._monitor.policies_changed(image)

    def _new_monitor(self) -> BacklogMonitor:
        from millstream.broker.backlog.monitor import BacklogMonitor
        from millstream.broker.backlog.positions import GroupPositions

        positions = GroupPositions(
            broker_id=self._configs.broker_id,
            metadata=self._metadata,
            coordinators=self._coordinators,
            peers=self._peers,
            tasks=self._tasks,
            clock=self._clock,
        )
        return BacklogMonitor(
            positions=positions,
            metadata=self._metadata,
            configs=self._configs,
            partitions=self._partitions,
            directories=self._directories,
            tasks=self._tasks,
            clock=self._clock,
            counters=self.counters,
        )
