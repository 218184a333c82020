"""The coordinators of this broker: who keeps the state of a group, and how it is reached.

    groups          __consumer_offsets    classic and consumer groups, committed offsets
    transactions    __transaction_state   found here; its shards come with the transactions
    share groups    __share_group_state   likewise

A key (a group id, a transactional id, a share partition) belongs to the partition of the internal
topic that its hash names, and the broker that leads the partition coordinates it. The topic is made
when the first client asks for a coordinator.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import IntEnum
from typing import Any, TypeVar

from millstream.broker.configs import ConfigManager
from millstream.broker.coordinator_shell import CoordinatorShell
from millstream.broker.metadata import MetadataStore
from millstream.broker.partitions import PartitionTable
from millstream.broker.timers import Timers
from millstream.broker.topics import TopicManager
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import BrokerImage, ClusterImage
from millstream.coordination.group_records import GROUP_RECORDS
from millstream.coordination.groups.group import GroupSettings
from millstream.coordination.groups.shard import GroupShard
from millstream.coordination.result import Result
from millstream.errors import ApiError, ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"
Response = TypeVar("Response")


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

    def start(self) -> None:
        """Load what is there, in the background; call it on the event loop."""
        self._metadata.subscribe(self._metadata_changed)
        self.groups.lead_all()

    async def stop(self) -> None:
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


class GroupCoordinator:
    """The groups whose partition of `__consumer_offsets` this broker leads."""

    def __init__(
        self,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._configs = configs
        self._topics = TopicsOfImage(metadata.image)
        self._settings = group_settings(configs.current)
        self._shell = CoordinatorShell(
            OFFSETS_TOPIC,
            GROUP_RECORDS,
            self._new_shard,
            partitions=partitions,
            timers=timers,
            clock=clock,
        )
        configs.subscribe(self._settings_changed)

    def _new_shard(self) -> GroupShard:
        return GroupShard(self._settings, self._topics, group_config=self._configs.group)

    def lead_all(self) -> None:
        """Load every shard whose partition is here."""
        for index in range(self._partition_count):
            self._shell.lead(index)

    async def all_loaded(self) -> None:
        await self._shell.all_loaded()

    async def stop(self) -> None:
        await self._shell.stop()

    # --- events

    async def run(
        self, group_id: str, event: Callable[[GroupShard, int], Result[Response]]
    ) -> Response:
        """Hand an event to the group's shard; the response, once it is durable."""
        return await self._shell.run(self._index_of(group_id), event)

    async def run_waiting(
        self, group_id: str, event: Callable[[GroupShard, object, int], Result[Any]]
    ) -> Any:
        """The same for JoinGroup and SyncGroup, which may wait for others."""
        return await self._shell.run_waiting(self._index_of(group_id), event)

    async def read(self, group_id: str, question: Callable[[GroupShard], Response]) -> Response:
        return await self._shell.read(self._index_of(group_id), question)

    async def read_all(self, question: Callable[[GroupShard], Response]) -> list[Response]:
        """Ask every shard. Raises COORDINATOR_LOAD_IN_PROGRESS while one is being loaded."""
        return [await self._shell.read(index, question) for index in range(self._partition_count)]

    @property
    def has_no_groups(self) -> bool:
        """Whether no group can exist, because nobody has ever asked for a coordinator."""
        return not self._partition_count

    def shards(self) -> list[GroupShard]:
        return self._shell.active_shards()

    @property
    def _partition_count(self) -> int:
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else 0

    def _index_of(self, group_id: str) -> int:
        count = self._partition_count
        if not count:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{OFFSETS_TOPIC} does not exist yet; FindCoordinator makes it.",
            )
        return partition_for(group_id, count)

    # --- changes around the groups

    def topics_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        topics = self._topics = TopicsOfImage(now)
        self.lead_all()
        self._shell.tell_all(lambda shard, now_ms: shard.topics_changed(topics, now_ms))
        for topic in now.changed_topics(before).deleted:
            self._topic_deleted(topic.name, topic.id)

    def _topic_deleted(self, name: str, topic_id: uuid.UUID) -> None:
        self._shell.tell_all(lambda shard, _: shard.topic_deleted(name, topic_id))

    def _settings_changed(self, *_: object) -> None:
        self._settings = group_settings(self._configs.current)
        for shard in self._shell.active_shards():
            shard.context.settings = self._settings


class TopicsOfImage:
    """The cluster's topics as groups see them (`coordination.groups.group.Topics`)."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.version

    def names(self) -> Iterable[str]:
        return self._image.topics.keys()

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self._image.topics.get(name)
        return topic.id if topic is not None else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self._image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None

    def partition_count(self, topic_id: uuid.UUID) -> int | None:
        topic = self._image.topics_by_id.get(topic_id)
        return len(topic.partitions) if topic is not None else None


def group_settings(config: BrokerConfig) -> GroupSettings:
    """What groups obey, out of the broker's settings."""
    same_name = {
        field.name: getattr(config, field.name)
        for field in fields(GroupSettings)
        if hasattr(config, field.name)
    }
    retention_ms = config.offsets_retention_minutes * 60_000
    return GroupSettings(**same_name | {"offsets_retention_ms": retention_ms})


def partition_for(key: str, partition_count: int) -> int:
    """Kafka's rule: Java's hash of the key, made positive, modulo the partitions."""
    return (java_hash(key) & 0x7FFFFFFF) % partition_count


def java_hash(text: str) -> int:
    """`String.hashCode()`: over UTF-16 code units, in 32 bits, unsigned here."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value
