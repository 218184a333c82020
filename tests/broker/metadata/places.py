"""Places where metadata are kept, for the tests that every home has to pass.

A place opens the home for the broker of a given id. What one `Place` opens is one cluster: several
brokers at once if the home allows it, or the same broker again.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Protocol

from millstream.broker.metadata.local import LocalMetadata
from millstream.broker.metadata.shared import SharedMetadata
from millstream.broker.metadata.store import MetadataLog
from millstream.storage.directories import LogDirectories
from millstream.storage.filesystem import OsFileSystem
from millstream.testing.clock import ManualClock
from tests.broker.cluster.clusters import Broker, Cluster

SNAPSHOT_BYTES = 4_000


class Place(Protocol):
    async def open(self, node_id: int = 1) -> MetadataLog: ...

    async def close(self, home: MetadataLog) -> None:
        """Stop the broker cleanly."""
        ...

    async def kill(self, home: MetadataLog) -> None:
        """Stop the broker as a crash would, after its last commit."""
        ...


class LocalPlace:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._directories: LogDirectories | None = None

    async def open(self, node_id: int = 1) -> LocalMetadata:
        self._directories = LogDirectories.open(
            [self._path], node_id=node_id, clock=ManualClock(), recovery_threads=1
        )
        return LocalMetadata.open(self._directories, ManualClock(), snapshot_bytes=SNAPSHOT_BYTES)

    async def close(self, home: MetadataLog) -> None:
        assert self._directories is not None
        await home.close()
        self._directories.close()

    async def kill(self, home: MetadataLog) -> None:
        assert self._directories is not None
        self._directories.abandon()


class SharedPlace:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self, node_id: int = 1) -> SharedMetadata:
        home = SharedMetadata(
            OsFileSystem(),
            str(self._path),
            ManualClock(),
            node_id=node_id,
            snapshot_bytes=SNAPSHOT_BYTES,
        )
        home.follow()
        return home

    async def close(self, home: MetadataLog) -> None:
        await home.close()

    async def kill(self, home: MetadataLog) -> None:
        assert isinstance(home, SharedMetadata)
        home.abandon()


class ZooKeeperPlace:
    """A cluster of its own in ZooKeeper."""

    def __init__(self, address: str) -> None:
        self._cluster = Cluster(address, f"/contract-{uuid.uuid4().hex}")
        self._brokers: dict[MetadataLog, Broker] = {}

    async def open(self, node_id: int = 1) -> MetadataLog:
        broker = await self._cluster.start_broker(
            node_id,
            settings={"metadata.log.max.record.bytes.between.snapshots": SNAPSHOT_BYTES},
            is_registered=False,
        )
        self._brokers[broker.home] = broker
        return broker.home

    async def close(self, home: MetadataLog) -> None:
        await self._brokers.pop(home).stop()

    async def kill(self, home: MetadataLog) -> None:
        await self._brokers.pop(home).vanish()


PLACES: dict[str, type[LocalPlace | SharedPlace]] = {"local": LocalPlace, "shared": SharedPlace}
SHARED_PLACES = ("shared",)  # where several brokers share the metadata
