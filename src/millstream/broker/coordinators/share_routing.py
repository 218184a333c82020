"""The persister of share state, wherever it is: on this broker, or on another one.

A share partition's state is in a partition of `__share_group_state`, whose leader keeps it. While
that moves, is being loaded or cannot be reached, requests are repeated for a few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.broker.coordinators.key_hash import partition_for
from millstream.broker.coordinators.share_state import SharePersister, coordinator_key
from millstream.broker.peers.leaders import leader_of
from millstream.coordination.cluster import SHARE_STATE_TOPIC
from millstream.coordination.share_state import NO_LEADER_EPOCH
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.peers.share_state import RemoteShareState
    from millstream.coordination.share_state import (
        SharePartitionKey,
        ShareState,
        ShareStateSummary,
        StateBatch,
    )

RETRY_SECONDS_MIN = 0.02
RETRY_SECONDS_MAX = 0.5
GIVE_UP_SECONDS = 5.0

_TEMPORARY = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
)

Answer = TypeVar("Answer")


class RoutedPersister:
    """Persists the state of any share partition. See `SharePersister` for the methods."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataStore,
        local: SharePersister,
        remote: RemoteShareState,
        make_topic: Callable[[], Awaitable[object]],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._local = local
        self._remote = remote
        self._make_topic = make_topic

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._make_topic()
        await self._ask(
            key,
            lambda: self._local.initialize(key, state_epoch, start_offset),
            lambda broker: self._remote.initialize(broker, key, state_epoch, start_offset),
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        return await self._ask(
            key,
            lambda: self._local.read(key, leader_epoch),
            lambda broker: self._remote.read(broker, key, leader_epoch),
        )

    async def peek(self, key: SharePartitionKey) -> ShareState:
        return await self._ask(
            key,
            lambda: self._local.peek(key),
            lambda broker: self._remote.read(broker, key, NO_LEADER_EPOCH),
        )

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int) -> ShareStateSummary:
        return await self._ask(
            key,
            lambda: self._local.read_summary(key, leader_epoch),
            lambda broker: self._remote.read_summary(broker, key, leader_epoch),
        )

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
        change = {
            "state_epoch": state_epoch,
            "leader_epoch": leader_epoch,
            "start_offset": start_offset,
            "delivery_complete_count": delivery_complete_count,
        }
        await self._ask(
            key,
            lambda: self._local.write(key, **change, batches=batches),
            lambda broker: self._remote.write(broker, key, **change, batches=batches),
        )

    async def delete(self, key: SharePartitionKey) -> None:
        await self._ask(
            key,
            lambda: self._local.delete(key),
            lambda broker: self._remote.delete(broker, key),
        )

    async def _ask(
        self,
        key: SharePartitionKey,
        here: Callable[[], Awaitable[Answer]],
        there: Callable[[int], Awaitable[Answer]],
    ) -> Answer:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + GIVE_UP_SECONDS
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                broker = self._broker_of(key)
                return await (here() if broker == self._broker_id else there(broker))
            except ApiError as error:
                if error.code not in _TEMPORARY or loop.time() + pause >= give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def _broker_of(self, key: SharePartitionKey) -> int:
        """The broker that keeps the state; this one, if nothing is kept yet."""
        image = self._metadata.image
        count = image.partition_count_of(SHARE_STATE_TOPIC)
        if not count:
            return self._broker_id
        index = partition_for(coordinator_key(key), count)
        if image.topics[SHARE_STATE_TOPIC].partitions[index].leader == self._broker_id:
            return self._broker_id
        return leader_of(image, SHARE_STATE_TOPIC, index)
