"""The persister: stores the state of share partitions in `__share_group_state`.

The leader of a share partition reads its state here and writes changes; the group coordinator
initializes and deletes it. The arguments are those of the APIs 83 to 87, so that these roles can be
on different brokers; today this broker has all of them.

Everything returns once it is durable, or raises `ApiError` with Kafka's codes. Calls wait while a
shard is loading. Records that newer snapshots supersede are deleted as in Kafka (the topic is not
compacted), but more often, because the rest must be replayed after a crash.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import TypeVar

from millstream.broker.coordinators.key_hash import InternalTopic, partition_for
from millstream.broker.coordinators.runtime import CoordinatorRuntime
from millstream.broker.coordinators.timers import Timers
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.store import MetadataStore
from millstream.broker.replicas.table import PartitionTable
from millstream.clock import Clock
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.result import Result
from millstream.coordination.share_state import (
    SharePartitionKey,
    ShareState,
    ShareStateSummary,
    StateBatch,
    StateWrite,
)
from millstream.coordination.share_state_records import SHARE_STATE_RECORDS
from millstream.coordination.share_state_shard import ShareStateShard
from millstream.errors import ApiError, ErrorCode

PRUNE_INTERVAL_MS = 30_000  # Kafka: 5 minutes
KEPT_GROUP_ID_LENGTH_MAX = 256
_PRUNE_TIMER = ("prune",)

Response = TypeVar("Response")


class SharePersister:
    """The share state of this broker."""

    def __init__(
        self,
        topic: str,
        metadata: MetadataStore,
        configs: ConfigManager,
        make_topic: Callable[[], Awaitable[object]],
        partitions: PartitionTable,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._internal = InternalTopic(
            topic,
            metadata,
            if_missing=(
                ErrorCode.INVALID_REQUEST,
                f"No share-group state has been initialized: {topic} does not exist.",
            ),
        )
        self._configs = configs
        self._make_topic = make_topic
        self._partitions = partitions
        self._timers = timers
        self._is_started = False
        self._recovered_ends: dict[tuple[uuid.UUID, int], int] = {}
        self._recovering: set[int] = set()  # shards not loaded since the start
        self._pruning: asyncio.Task[None] | None = None
        self._runtime = CoordinatorRuntime(
            topic,
            SHARE_STATE_RECORDS,
            self._new_shard,
            partitions=partitions,
            timers=timers,
            clock=clock,
            led_epoch=partial(self._internal.led_epoch, configs.broker_id),
            on_loaded=self._loaded,
            on_resigned=self._resigned,
        )

    def _new_shard(self) -> ShareStateShard:
        return ShareStateShard(
            updates_per_snapshot=self._updates_per_snapshot,
            partition_count=self._partition_count,
            recovered_end=self._recovered_end,
        )

    def _updates_per_snapshot(self) -> int:
        return self._configs.current.share_coordinator_snapshot_update_records_per_snapshot

    def _partition_count(self, topic_id: uuid.UUID) -> int | None:
        topic = self._metadata.image.topics_by_id.get(topic_id)
        return len(topic.partitions) if topic is not None else None

    # --- life cycle

    def load_all(self) -> None:
        """Load all shards of this broker, and resign from those of others. The first time before
        clients can produce."""
        if not self._is_started:
            self._is_started = True
            # Others may have written to a shard that comes here later.
            self._recovering = {
                index
                for index in range(self._internal.partition_count)
                if self._internal.led_epoch(self._configs.broker_id, index) is not None
            }
            self._recovered_ends = self._log_ends() if self._recovering else {}
            self._prune_later()
        self._runtime.lead(self._internal.partition_count)

    def _recovered_end(self, key: SharePartitionKey) -> int | None:
        """Before a shard is loaded for the first time, nothing was written to it."""
        if self._index_of(key) not in self._recovering:
            return None
        return self._recovered_ends.get((key.topic_id, key.partition))

    def _loaded(self, index: int, shard: ShareStateShard) -> None:
        self._resigned(index)

    def _resigned(self, index: int) -> None:
        self._recovering.discard(index)
        if not self._recovering:
            self._recovered_ends = {}

    def _log_ends(self) -> dict[tuple[uuid.UUID, int], int]:
        return {
            (partition.topic_id, partition.index): partition.log.log_end_offset
            for partition in self._partitions
            if partition.topic_id is not None
        }

    async def all_loaded(self) -> None:
        await self._runtime.all_loaded()

    async def stop(self) -> None:
        self._timers.cancel_all(self)
        if self._pruning is not None:
            await self._pruning
        await self._runtime.stop()

    def topics_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        self.load_all()
        deleted = [topic.id for topic in now.changed_topics(before).deleted]
        if deleted:
            self._runtime.tell_all(lambda shard, _: shard.topics_deleted(deleted))

    def _prune_later(self) -> None:
        self._timers.set(self, _PRUNE_TIMER, PRUNE_INTERVAL_MS, self._start_pruning)

    def _start_pruning(self) -> None:
        self._pruning = asyncio.get_running_loop().create_task(self.prune())
        self._prune_later()

    async def prune(self) -> None:
        """Delete superseded records."""
        await self._runtime.prune()

    # --- APIs 83 to 87

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Start at that offset (-1: the leader determines it). Creates the topic on first use."""
        await self._make_topic()
        await self._run(
            key, lambda shard, now_ms: shard.initialize(key, state_epoch, start_offset, now_ms)
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """The state, for a leader of this epoch; fences earlier leaders."""
        return await self._run(key, lambda shard, now_ms: shard.read(key, leader_epoch, now_ms))

    async def peek(self, key: SharePartitionKey) -> ShareState:
        """Read without fencing, for callers that do not lead the partition."""
        index = self._index_of(key)
        await self._runtime.until_loaded(index)
        return await self._runtime.read(index, lambda shard: shard.peek(key))

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int) -> ShareStateSummary:
        """The state without its batches; an uninitialized state has start offset -1.

        The leader epoch is ignored, as in Kafka.
        """
        if not self._internal.partition_count:
            return ShareStateSummary()
        index = self._index_of(key)
        await self._runtime.until_loaded(index)
        return await self._runtime.read(index, lambda shard: shard.read_summary(key))

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Write changes."""
        write = StateWrite(
            key, state_epoch, leader_epoch, start_offset, delivery_complete_count, tuple(batches)
        )
        await self._run(key, lambda shard, now_ms: shard.write(write, now_ms))

    async def write_all(self, writes: Sequence[StateWrite]) -> list[ApiError | None]:
        """Several writes in one turn, which share a flush; each succeeds (None) or fails alone."""
        indexes = [self._index_of(write.key) for write in writes]
        for index in set(indexes):
            await self._runtime.until_loaded(index)
        outcomes = await self._runtime.run_all(
            (index, _writing(write)) for index, write in zip(indexes, writes, strict=True)
        )
        return [outcome if isinstance(outcome, ApiError) else None for outcome in outcomes]

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete the state; a no-op if there is none."""
        if self._internal.partition_count:
            await self._run(key, lambda shard, _: shard.delete(key))

    async def _run(
        self, key: SharePartitionKey, event: Callable[[ShareStateShard, int], Result[Response]]
    ) -> Response:
        index = self._index_of(key)
        await self._runtime.until_loaded(index)
        return await self._runtime.run(index, event)

    def _index_of(self, key: SharePartitionKey) -> int:
        return shard_of(key, self._internal.check_exists())


def shard_of(key: SharePartitionKey, shard_count: int) -> int:
    """Kept, except for long ids: these would take memory that their senders choose."""
    is_kept = len(key.group_id) <= KEPT_GROUP_ID_LENGTH_MAX
    return (_kept_shard_of if is_kept else _shard_of)(key, shard_count)


def _shard_of(key: SharePartitionKey, shard_count: int) -> int:
    return partition_for(coordinator_key(key), shard_count)


_kept_shard_of = lru_cache(maxsize=10_000)(_shard_of)


def coordinator_key(key: SharePartitionKey) -> str:
    """The share partition's key in FindCoordinator; its hash determines the shard."""
    topic_id = base64.urlsafe_b64encode(key.topic_id.bytes).rstrip(b"=").decode()
    return f"{key.group_id}:{topic_id}:{key.partition}"


def _writing(write: StateWrite) -> Callable[[ShareStateShard, int], Result[ErrorCode]]:
    return lambda shard, now_ms: shard.write(write, now_ms)
