"""The cluster's id: created once, and compared with the log directories."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millstream.broker.cluster.identity import CLUSTER_ID, find_cluster_id
from millstream.errors import StorageError
from millstream.storage.directories import LogDirectories
from millstream.storage.filesystem import OsFileSystem
from tests.broker.cluster.clusters import Cluster

FS = OsFileSystem()


def make_directory(path: Path, cluster_id: str) -> Path:
    LogDirectories.open([path], cluster_id=cluster_id).close()
    return path


def test_first_broker_creates_the_id_and_others_find_it(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster.session() as one, cluster.session() as two:
            ids = await asyncio.gather(
                *(find_cluster_id(it, FS, [tmp_path / "new"]) for it in (one, two, one, two))
            )
            assert len(set(ids)) == 1
            content = json.loads((await one.get(CLUSTER_ID)).data)
            assert content == {"version": "1", "id": ids[0]}
            own = make_directory(tmp_path / "own", ids[0])
            assert await find_cluster_id(one, FS, [own, tmp_path / "new"]) == ids[0]

    asyncio.run(scenario())


def test_directory_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            cluster_id = await find_cluster_id(session, FS, [])
            foreign = make_directory(tmp_path / "foreign", "A" * 22)
            with pytest.raises(StorageError, match=f"has cluster {cluster_id}") as caught:
                await find_cluster_id(session, FS, [foreign])
            assert "A" * 22 in str(caught.value)

    asyncio.run(scenario())


def test_directory_with_an_id_creates_no_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """A wrong chroot, or a new ZooKeeper."""

    async def scenario() -> None:
        async with cluster.session() as session:
            own = make_directory(tmp_path / "own", "A" * 22)
            with pytest.raises(StorageError, match="has no cluster: check the addresses"):
                await find_cluster_id(session, FS, [tmp_path / "new", own])
            assert await session.find("/cluster") is None

    asyncio.run(scenario())


def test_unreadable_id_is_refused(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            await session.ensure("/cluster")
            await session.create(CLUSTER_ID, b"?")
            with pytest.raises(StorageError, match="is not a cluster id"):
                await find_cluster_id(session, FS, [])

    asyncio.run(scenario())
