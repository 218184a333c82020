"""All share partitions that this broker leads.

A share partition is loaded when a member first fetches from it. It is unloaded when its state is
deleted or reset, when its partition is deleted, and when the group has no sessions and nothing in
flight.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millstream.broker.sharing.leader import OldRecords, ShareLeader
from millstream.broker.sharing.sessions import ShareSession, ShareSessions
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.share_state import SharePartitionKey, StateBatch
from millstream.coordination.sharing.window import RENEW
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.sharing.dead_letters import DeadLetters
    from millstream.broker.sharing.leader import Persister
    from millstream.broker.sharing.reading import LogRead
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.config.groups import GroupConfig

STOP_SECONDS_MAX = 3.0
STOP_POLL_SECONDS = 0.002


class Archiving(OldRecords, Protocol):
    """Of this broker."""

    def run_blocking(self, function: Callable[[], LogRead], /) -> asyncio.Future[LogRead]:
        """Call a function that may wait for the archive, in a thread."""


class SharePartitions:
    """Finds or creates the leader of a share partition."""

    def __init__(
        self,
        *,
        broker_id: int,
        tasks: Tasks,
        clock: Clock,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        persister: Persister,
        dead_letters: DeadLetters,
        archiving: Archiving,
        on_connection_closed: list[Callable[[int], None]],
    ) -> None:
        """`on_connection_closed` holds callbacks that are called with a connection's id."""
        self.broker_id = broker_id
        self.tasks = tasks
        self.table = partitions
        self._clock = clock
        self._metadata = metadata
        self._group_configs = configs
        self._persister = persister
        self.dead_letters = dead_letters
        self._archiving = archiving
        self._on_connection_closed = on_connection_closed
        self._groups: dict[str, dict[tuple[UUID, int], ShareLeader]] = {}
        self._configs: dict[str, GroupConfig] = {}
        self._configs_version = -1  # of the metadata that they were taken from
        self.sessions = ShareSessions(on_close=self._session_closed)
        # For metrics: records by type of acknowledgement, and requests by topic.
        self.acknowledged = [0] * (RENEW + 1)
        self.acknowledgement_requests: Counter[UUID] = Counter()
        self.fetch_requests: Counter[UUID] = Counter()
        on_connection_closed.append(self.sessions.connection_closed)
        metadata.subscribe(self._on_commit)

    def _on_commit(self, before: ClusterImage, now: ClusterImage) -> None:
        """Wake fetches of groups whose settings changed: more records may be locked now.

        The broker's own limits of locks do not change while it runs.
        """
        for resource in now.changed_configs(before):
            if resource.type is ResourceType.GROUP:
                for leader in tuple(self._groups.get(resource.name, {}).values()):
                    leader.settings_changed()

    def run_reading(
        self, partition: Partition, offset: int, read: Callable[[], LogRead]
    ) -> asyncio.Future[LogRead]:
        """In a thread. A bucket may take long: it must not hold up reads of the disk."""
        if partition.is_below_log(offset):
            return self._archiving.run_blocking(read)
        return self.tasks.run_blocking(read)

    def config(self, group_id: str) -> GroupConfig:
        """The group's settings, cached until the metadata changes."""
        version = self._metadata.image.version
        if version != self._configs_version:
            self._configs.clear()
            self._configs_version = version
        config = self._configs.get(group_id)
        if config is None:
            config = self._configs[group_id] = self._group_configs.group(group_id)
        return config

    def get(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | None:
        return self._groups.get(group_id, {}).get((topic_id, index))

    def leaders(self) -> list[ShareLeader]:
        """Those that are loaded, of all groups."""
        return [leader for group in self._groups.values() for leader in group.values()]

    def current_leader(self, topic_id: UUID, index: int) -> tuple[int, int]:
        """The id and epoch of the partition's leader; -1 if unknown."""
        partition = self._metadata.image.partition(topic_id, index)
        return (-1, -1) if partition is None else (partition.leader, partition.leader_epoch)

    def open(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader:
        """The leader, which may still be loading. Raises `ApiError` for an unknown partition."""
        leader = self.get(group_id, topic_id, index)
        if leader is None:
            partition = self.table.find(topic_id, index)
            key = SharePartitionKey(group_id, topic_id, index)
            leader = ShareLeader(
                key,
                partition,
                self,
                tasks=self.tasks,
                clock=self._clock,
                persister=self._persister,
                group_config=self.config,
                dead_letters=self.dead_letters,
                archiving=self._archiving,
            )
            self._groups.setdefault(group_id, {})[topic_id, index] = leader
            leader.start()
        return leader

    def forget(self, key: SharePartitionKey) -> None:
        """The state was deleted or reset: the next fetch reloads it."""
        leader = self.get(key.group_id, key.topic_id, key.partition)
        if leader is not None:
            leader.end(
                ApiError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    "the group's offset was deleted or reset; fetch again",
                )
            )

    def describe(self, key: SharePartitionKey) -> list[StateBatch]:
        """The records in flight; empty if it is not loaded."""
        leader = self.get(key.group_id, key.topic_id, key.partition)
        return [] if leader is None else leader.describe()

    async def stop(self) -> None:
        """Release all locked records, so that delivery counts are persisted, and stop.

        Earlier acknowledgements are written too. Call it while the persister is running.
        """
        self._on_connection_closed.remove(self.sessions.connection_closed)
        self.sessions.close_all()
        leaders = self.leaders()
        deadline = self.tasks.loop.time() + STOP_SECONDS_MAX
        while any(each.is_writing for each in leaders) and self.tasks.loop.time() < deadline:
            await asyncio.sleep(STOP_POLL_SECONDS)
        for leader in leaders:
            leader.end(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping"))

    def leader_ended(self, leader: ShareLeader) -> None:
        key = leader.key
        leaders = self._groups.get(key.group_id, {})
        if leaders.get((key.topic_id, key.partition)) is leader:
            del leaders[key.topic_id, key.partition]
            if not leaders:
                del self._groups[key.group_id]

    def leader_rests(self, leader: ShareLeader) -> None:
        """Unload an idle share partition: its state is persisted."""
        if not self.sessions.has_any(leader.key.group_id):
            leader.end(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the group was idle"))

    def _session_closed(self, session: ShareSession) -> None:
        """Release the records of the member."""
        for leader in list(self._groups.get(session.group_id, {}).values()):
            leader.release(session.member_id)
            if leader.is_at_rest:
                self.leader_rests(leader)
