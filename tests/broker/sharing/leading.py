"""Partitions on a filesystem in memory, led as a broker leads them: for tests without a server."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from millstream.broker.replicas.flushing import Flusher
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.table import PartitionTable
from millstream.broker.turn import Turn
from millstream.config.topic import TopicConfig
from millstream.records.record import Record, encode_batch
from millstream.storage.directories import LogDirectories
from millstream.testing.clock import ManualClock
from millstream.testing.filesystem import MemoryFileSystem


class Leader:
    """A partition table over logs in memory; make it inside a running event loop."""

    def __init__(self, *, new_logs_inline: bool = True) -> None:
        self.fs = MemoryFileSystem()
        self.clock = ManualClock()
        self.directories = LogDirectories.open(["/data"], fs=self.fs, clock=self.clock)
        self.turn = Turn(asyncio.get_running_loop())
        self.flusher = Flusher(
            asyncio.get_running_loop(), self.clock, self.turn, new_logs_inline=new_logs_inline
        )
        self.partitions = PartitionTable(self.flusher, self.clock)

    def partition(
        self, topic: str = "topic", index: int = 0, *, leader_epoch: int = 0, **config: Any
    ) -> Partition:
        settings = TopicConfig(**config)
        log = self.directories.create(topic, index, uuid.uuid4(), settings)
        return self.partitions.add(topic, index, log, leader_epoch=leader_epoch)

    def batch(self, *values: bytes, **options: Any) -> bytes:
        """One batch of records, timestamped now."""
        now_ms = self.clock.now_ms()
        records = [Record(delta, now_ms, None, value) for delta, value in enumerate(values)]
        return encode_batch(records, **options)


async def turn() -> None:
    """Let the event loop come round, so that what was scheduled for the end of the turn runs."""
    for _ in range(3):
        await asyncio.sleep(0)
