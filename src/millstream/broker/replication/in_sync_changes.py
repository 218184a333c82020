"""Proposes changes of in-sync sets, for the partitions that this broker leads.

Every `replica.lag.time.max.ms` / 2, and as soon as a follower may join, all leaders are asked for
their proposals, which are sent as one change of the metadata. The outcome comes with the metadata:
the reconciler tells the leaders of every new state. A refusal ends the proposal; if the outcome is
unknown, the same proposal is sent again, which has no effect if it was decided.

If a log directory has failed or its disk is full, this broker cannot write the partitions there: it
leaves their in-sync sets, and others lead. It joins again when it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from millstream.coordination.cluster import PartitionImage
from millstream.coordination.replication.controller import Proposal
from millstream.errors import ApiError

if TYPE_CHECKING:
    from millstream.broker.metadata.actions import ClusterActions
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.replicas.in_sync import InSyncSet
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.clock import Clock
    from millstream.coordination.replication.leader import IsrChange
    from millstream.storage.directory import LogDirectory

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5


class InSyncChanges:
    """A task, while there are partitions with several replicas."""

    def __init__(
        self,
        partitions: PartitionTable,
        actions: ClusterActions,
        configs: ConfigManager,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._actions = actions
        self._configs = configs
        self._clock = clock
        self._wanted = asyncio.Event()
        self._full: set[LogDirectory] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Begin, if it has not."""
        if self._task is None and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def propose_soon(self) -> None:
        self._wanted.set()

    def leave_soon(self, full: Iterable[LogDirectory] = ()) -> None:
        """Leave the in-sync sets of partitions in failed directories, and in these."""
        self._full.update(full)
        self.start()
        self._wanted.set()

    async def stop(self) -> None:
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._is_stopped:
            seconds = self._configs.current.replica_lag_time_max_ms / 2000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._leave()
                await self._propose()
            except ApiError as error:
                logger.info("in-sync sets are not changed yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wanted.set()
            except Exception:  # a defect must not end replication for good
                logger.exception("in-sync sets could not be changed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _leave(self) -> None:
        full, self._full = self._full, set()
        leaving = [
            (partition.topic_id, partition.index)
            for partition in self._partitions
            if partition.topic_id is not None and _cannot_write(partition, full)
        ]
        if leaving:
            await self._actions.withdraw(leaving)

    async def _propose(self) -> None:
        now_ms = self._clock.monotonic_ms()
        found: list[tuple[Partition, InSyncSet, IsrChange]] = []
        for partition in self._partitions:
            in_sync = partition.in_sync
            if in_sync is not None:
                change = in_sync.tick(now_ms) or in_sync.proposal
                if change is not None:
                    found.append((partition, in_sync, change))
        if not found:
            return
        outcomes = await self._actions.alter_partitions(
            [_proposal(partition, change) for partition, _, change in found]
        )
        for (partition, in_sync, change), outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, PartitionImage):
                logger.info("%r: in sync are %s now", partition, outcome.isr)
                if partition.in_sync is in_sync:
                    in_sync.committed(outcome)
            else:
                logger.info("%r: in-sync set %s was refused: %s", partition, change.isr, outcome)
            if in_sync.proposal is change:
                in_sync.refused()


def _cannot_write(partition: Partition, full: Container[LogDirectory]) -> bool:
    """A follower that finds its disk full is left to its leader, who knows if it lags behind."""
    directory = partition.log.directory
    return directory.failure is not None or (partition.in_sync is not None and directory in full)


def _proposal(partition: Partition, change: IsrChange) -> Proposal:
    assert partition.topic_id is not None
    return Proposal(partition.topic_id, partition.index, change)
