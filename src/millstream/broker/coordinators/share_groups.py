"""Operations that involve both the group coordinator and the share state persister.

The group coordinator's shard records an intent, the persister executes it, and the shard records
the result (coordination/groups/share_state_partitions.py). If this broker dies in between, the next
heartbeat or the administrator's next attempt continues from there.

Such a sequence runs in its own task, which completes even if the client disconnects. There is one
at a time per group: an offset that is being deleted is not initialized at the same time. Heartbeats
continue meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from millstream.broker.coordinators.groups import GroupCoordinator
from millstream.broker.coordinators.share_routing import RoutedPersister
from millstream.coordination.groups import share_offsets
from millstream.coordination.groups.share_messages import (
    AlteredPartition,
    DeletedTopic,
    Initialization,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")
Errors: TypeAlias = dict[tuple[UUID, int], ApiError]
# Called for every share partition whose state was replaced: its leader must reload it.
Forget: TypeAlias = Callable[[SharePartitionKey], None]


class ShareGroupCoordinator:
    """Share groups: operations of the group coordinator and the state persister."""

    def __init__(self, groups: GroupCoordinator, state: RoutedPersister) -> None:
        self._groups = groups
        self._state = state
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- members

    async def heartbeat(self, beat: ShareHeartbeat) -> ShareHeartbeatResponse:
        """Answer a heartbeat, after initializing partitions without state."""
        first = await self._beat(beat)
        if first.initialization is None:
            return first
        if not await self._finish(self._initialize(first.initialization)):
            return first
        # Repeat it to get the partitions. It must not restore older fields if the member has sent
        # newer ones meanwhile, and it uses the member's own epoch.
        epoch = beat.member_epoch or first.member_epoch
        again = replace(beat, member_epoch=epoch, rack_id=None, topic_names=None)
        second = await self._beat(again)
        if second.assignment is None:
            return replace(second, assignment=first.assignment)
        return second

    async def _beat(self, beat: ShareHeartbeat) -> ShareHeartbeatResponse:
        return await self._groups.run(
            beat.group_id, lambda shard, now_ms: shard.share_groups.heartbeat(beat, now_ms)
        )

    async def _initialize(self, initialization: Initialization) -> bool:
        """Initialize the remaining partitions; returns whether all succeeded."""
        group_id = initialization.group_id
        async with self._lock(group_id):
            left = await self._groups.read(
                group_id, lambda shard: shard.share_groups.still_to_initialize(initialization)
            )
            return not await self._write_states(left)

    async def _write_states(self, initialization: Initialization) -> Errors:
        """Let the persister write the states, and the shard record the result."""
        group_id, epoch, start_offsets = initialization
        results = await asyncio.gather(
            *(
                self._state.initialize(SharePartitionKey(group_id, *partition), epoch, offset)
                for partition, offset in start_offsets.items()
            ),
            return_exceptions=True,
        )
        errors = _errors(start_offsets, results)
        done = [partition for partition in start_offsets if partition not in errors]
        if done:
            await self._groups.run(
                group_id,
                lambda shard, now_ms: shard.share_groups.state_initialized(group_id, done, now_ms),
            )
        if errors:
            failed = list(errors)
            logger.warning(
                "share group %s: failed to initialize %d states: %s",
                group_id,
                len(failed),
                errors[failed[0]],
            )
            await self._groups.run(
                group_id,
                lambda shard, _: shard.share_groups.initialization_failed(group_id, failed),
            )
        return errors

    # --- administration

    async def initialized_partitions(self, group_id: str) -> dict[UUID, frozenset[int]]:
        """The partitions in which the group has an offset."""
        return await self._groups.read(
            group_id,
            lambda shard: dict(share_offsets.initialized_partitions(shard.share_groups, group_id)),
        )

    async def alter_offsets(
        self, group_id: str, positions: Sequence[tuple[str, int, int]], forget: Forget
    ) -> list[tuple[AlteredPartition, ApiError | None]]:
        """Set offsets (topic, partition, start offset); returns the result of each."""
        return await self._finish(self._alter_offsets(group_id, positions, forget))

    async def _alter_offsets(
        self, group_id: str, positions: Sequence[tuple[str, int, int]], forget: Forget
    ) -> list[tuple[AlteredPartition, ApiError | None]]:
        async with self._lock(group_id):
            altered = await self._groups.run(
                group_id,
                lambda shard, now_ms: share_offsets.alter_offsets(
                    shard.share_groups, group_id, positions, now_ms
                ),
            )
            errors = await self._write_states(altered.initialization)
            for key in altered.initialization.share_partitions():
                forget(key)
        outcomes = []
        for outcome in altered.partitions:
            error: ApiError | None = None
            if outcome.error is not ErrorCode.NONE:
                error = ApiError(outcome.error)
            elif outcome.topic_id is not None:
                error = errors.get((outcome.topic_id, outcome.partition))
            outcomes.append((outcome, error))
        return outcomes

    async def delete_offsets(
        self, group_id: str, topics: Iterable[str], forget: Forget
    ) -> list[DeletedTopic]:
        """Delete the group's offsets in these topics; returns the result of each topic."""
        return await self._finish(self._delete_offsets(group_id, list(topics), forget))

    async def _delete_offsets(
        self, group_id: str, names: list[str], forget: Forget
    ) -> list[DeletedTopic]:
        async with self._lock(group_id):
            begun = await self._groups.run(
                group_id,
                lambda shard, _: share_offsets.begin_delete_offsets(
                    shard.share_groups, group_id, names
                ),
            )
            deleted = [await self._delete_topic(topic, forget) for topic in begun]
            done = [t.topic_id for t in deleted if t.topic_id and t.error is ErrorCode.NONE]
            if done:
                await self._groups.run(
                    group_id,
                    lambda shard, _: share_offsets.offsets_deleted(
                        shard.share_groups, group_id, done
                    ),
                )
            return deleted

    async def _delete_topic(self, topic: DeletedTopic, forget: Forget) -> DeletedTopic:
        error = await self._delete_states(topic.keys, forget)
        if error is None:
            return topic
        return topic._replace(error=error.code, error_message=error.message)

    async def delete_group(self, group_id: str, forget: Forget) -> None:
        """Delete a group of any kind; for a share group, its offsets first. Raises `ApiError`."""
        await self._finish(self._delete_group(group_id, forget))

    async def _delete_group(self, group_id: str, forget: Forget) -> None:
        async with self._lock(group_id):
            keys = await self._groups.run(
                group_id,
                lambda shard, _: share_offsets.begin_delete_group(shard.share_groups, group_id),
            )
            error = await self._delete_states(keys, forget)
            if error is not None:
                raise error
            await self._groups.run(group_id, lambda shard, _: shard.delete_group(group_id))

    async def _delete_states(
        self, keys: Sequence[SharePartitionKey], forget: Forget
    ) -> ApiError | None:
        """Let the persister delete these; returns an error if one failed."""
        results = await asyncio.gather(*map(self._state.delete, keys), return_exceptions=True)
        for key in keys:
            forget(key)
        errors = _errors([(key.topic_id, key.partition) for key in keys], results)
        return next(iter(errors.values()), None)

    # --- sequences

    def _lock(self, group_id: str) -> asyncio.Lock:
        lock = self._locks.get(group_id)
        if lock is None:
            lock = self._locks[group_id] = asyncio.Lock()
        return lock

    async def _finish(self, sequence: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run it to its end, even if its caller is cancelled."""
        task = asyncio.get_running_loop().create_task(sequence)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _errors(
    partitions: Iterable[tuple[UUID, int]], results: Sequence[BaseException | None]
) -> Errors:
    """The failures. Anything but an `ApiError` is a bug, and raised."""
    errors = {}
    for partition, result in zip(partitions, results, strict=True):
        if isinstance(result, ApiError):
            errors[partition] = result
        elif result is not None:
            raise result
    return errors
