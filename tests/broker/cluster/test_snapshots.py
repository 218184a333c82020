"""Snapshots in a real ZooKeeper: written in chunks, read back, and deleted when replaced."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.cluster import nodes
from millstream.broker.cluster.nodes import LOG, SNAPSHOTS, Head, entry_path, snapshot_path
from millstream.broker.cluster.session import NoNode
from millstream.broker.cluster.snapshots import delete_replaced, read_snapshot, write_snapshot
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_records import ConfigRecord
from tests.broker.cluster.clusters import Cluster

IMAGE = ClusterImage().apply(
    [ConfigRecord(ResourceType.GROUP, "g", f"n{number}", "1") for number in range(100)], 99
)


def test_snapshot_of_many_chunks_survives_the_round_trip(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "RECORDS_PER_CHUNK_MAX", 5)

    async def scenario() -> None:
        async with cluster.session() as session:
            await session.ensure(SNAPSHOTS)
            name = await write_snapshot(session, IMAGE, 7, now_ms=0)
            assert len(await session.children(snapshot_path(name))) == 20
            assert await read_snapshot(session, name) == (IMAGE, 7)

    asyncio.run(scenario())


def test_only_what_the_head_does_not_need_is_deleted(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            await session.ensure(SNAPSHOTS)
            await session.ensure(LOG)
            for number in range(1, 251):
                await session.create(entry_path(number))
            names = [
                await write_snapshot(session, IMAGE, entry, now_ms=0) for entry in (3, 240, 245)
            ]
            head = Head(250, 231, names[1])
            await asyncio.gather(delete_replaced(session, head), delete_replaced(session, head))
            assert await session.children(SNAPSHOTS) == names[1:]
            assert len(await session.children(LOG)) == 20
            with pytest.raises(NoNode):
                await read_snapshot(session, names[0])

    asyncio.run(scenario())
