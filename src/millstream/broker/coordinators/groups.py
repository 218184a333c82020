"""The group coordinator of this broker: its shards, metadata changes and settings.

Handlers pass events to the shard of a group; changes of metadata and settings go to all shards. The
first FindCoordinator creates `__consumer_offsets`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from millstream.broker.coordinators.key_hash import InternalTopic
from millstream.broker.coordinators.runtime import NO_TRANSACTION, CoordinatorRuntime, Transaction
from millstream.broker.coordinators.timers import Timers
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.store import MetadataStore
from millstream.broker.replicas.pending import PendingAppend
from millstream.broker.replicas.table import PartitionTable
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.group_records import GROUP_RECORDS
from millstream.coordination.groups.group import GroupSettings
from millstream.coordination.groups.shard import GroupShard
from millstream.coordination.result import Result
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.errors import ApiError, ErrorCode

Response = TypeVar("Response")


class GroupCoordinator:
    """The groups whose partition of `__consumer_offsets` this broker leads."""

    def __init__(
        self,
        topic: str,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._internal = InternalTopic(
            topic,
            metadata,
            if_missing=(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{topic} does not exist yet; FindCoordinator creates it.",
            ),
        )
        self._configs = configs
        self._topics = TopicsOfImage(metadata.image)
        self._settings = group_settings(configs.current)
        self._runtime = CoordinatorRuntime(
            topic,
            GROUP_RECORDS,
            self._new_shard,
            partitions=partitions,
            timers=timers,
            clock=clock,
            led_epoch=partial(self._internal.led_epoch, configs.broker_id),
        )
        configs.subscribe(self._settings_changed)

    def _new_shard(self) -> GroupShard:
        return GroupShard(self._settings, self._topics, group_config=self._configs.group)

    def load_all(self) -> None:
        """Load all shards of this broker, and resign from those of others."""
        self._runtime.lead(self._internal.partition_count)

    async def all_loaded(self) -> None:
        await self._runtime.all_loaded()

    async def stop(self) -> None:
        await self._runtime.stop()

    # --- events

    async def run(
        self,
        group_id: str,
        event: Callable[[GroupShard, int], Result[Response]],
        *,
        transaction: Transaction = NO_TRANSACTION,
    ) -> Response:
        """Pass an event to the group's shard; returns the response once it is durable.

        With a transaction (producer id and epoch), its records are pending until that ends.
        """
        return await self._runtime.run(self.index_of(group_id), event, transaction=transaction)

    def complete_transaction(self, index: int, marker: TransactionMarker) -> PendingAppend:
        """End a transaction in one partition: append its marker, and commit or drop its offsets."""
        return self._runtime.complete_transaction(index, marker)

    async def run_waiting(
        self, group_id: str, event: Callable[[GroupShard, object, int], Result[Any]]
    ) -> Any:
        """The same for JoinGroup and SyncGroup, which may wait for others."""
        return await self._runtime.run_waiting(self.index_of(group_id), event)

    async def read(self, group_id: str, question: Callable[[GroupShard], Response]) -> Response:
        return await self._runtime.read(self.index_of(group_id), question)

    async def read_all(self, question: Callable[[GroupShard], Response]) -> list[Response]:
        """Query all shards; raises COORDINATOR_LOAD_IN_PROGRESS while one is loading."""
        answers = []
        for index in range(self._internal.partition_count):
            try:
                answers.append(await self._runtime.read(index, question))
            except ApiError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    raise
        return answers

    @property
    def has_no_groups(self) -> bool:
        """Whether no group can exist, because the internal topic does not."""
        return not self._internal.partition_count

    def shards(self) -> list[GroupShard]:
        return self._runtime.active_shards()

    def shard_of(self, group_id: str) -> GroupShard | None:
        """The shard of a group, if this broker coordinates it and has loaded it; also with state
        that is not durable yet."""
        return None if self.has_no_groups else self._runtime.peek(self.index_of(group_id))

    def index_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that the group belongs to."""
        return self._internal.index_of(group_id)

    # --- metadata and settings

    def topics_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        topics = self._topics = TopicsOfImage(now)
        self.load_all()
        self._runtime.tell_all(lambda shard, now_ms: shard.topics_changed(topics, now_ms))
        for topic in now.changed_topics(before).deleted:
            self._topic_deleted(topic.name, topic.id)

    def _topic_deleted(self, name: str, topic_id: uuid.UUID) -> None:
        self._runtime.tell_all(lambda shard, _: shard.topic_deleted(name, topic_id))

    def _settings_changed(self, *_: object) -> None:
        self._settings = group_settings(self._configs.current)
        for shard in self._runtime.active_shards():
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
    """The settings for groups, from the broker's settings."""
    same_name = {
        field.name: getattr(config, field.name)
        for field in fields(GroupSettings)
        if hasattr(config, field.name)
    }
    retention_ms = config.offsets_retention_minutes * 60_000
    return GroupSettings(**same_name | {"offsets_retention_ms": retention_ms})
