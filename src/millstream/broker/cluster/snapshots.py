"""Snapshots of the metadata in ZooKeeper, and the deletion of what they replace. See `nodes`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from millstream.broker.cluster.nodes import (
    LOG,
    SNAPSHOTS,
    Head,
    SnapshotHeader,
    decode_chunk,
    encode_chunks,
    entry_path,
    snapshot_path,
)
from millstream.broker.cluster.session import Delete, NoNode, ZooKeeperSession
from millstream.coordination.cluster import ClusterImage

CHUNKS_AT_ONCE = 8  # each has up to half a megabyte
DELETIONS_AT_ONCE = 100


async def write_snapshot(
    session: ZooKeeperSession, image: ClusterImage, entry: int, now_ms: int
) -> str:
    """Write the image that entry number `entry` leads to; returns the snapshot's name. It does not
    count before the head names it."""
    chunks = list(encode_chunks(image.records(), now_ms))
    name = f"{entry:010d}-{secrets.token_hex(8)}"
    header = SnapshotHeader(entry, image.version, len(chunks))
    await session.create(snapshot_path(name), header.encode())
    for first in range(0, len(chunks), CHUNKS_AT_ONCE):
        numbered = list(enumerate(chunks))[first : first + CHUNKS_AT_ONCE]
        await asyncio.gather(
            *(session.create(f"{snapshot_path(name)}/{number}", data) for number, data in numbered)
        )
    return name


async def read_snapshot(session: ZooKeeperSession, name: str) -> tuple[ClusterImage, int]:
    """The image, and the number of the entry that leads to it. Raises `NoNode` if a newer snapshot
    has replaced it."""
    path = snapshot_path(name)
    header = SnapshotHeader.decode(path, (await session.get(path)).data)
    records = []
    for first in range(0, header.chunks, CHUNKS_AT_ONCE):
        numbers = range(first, min(first + CHUNKS_AT_ONCE, header.chunks))
        for node in await asyncio.gather(*(session.get(f"{path}/{it}") for it in numbers)):
            records += decode_chunk(node.data)
    return ClusterImage().apply(records, header.version), header.entry


async def delete_replaced(session: ZooKeeperSession, head: Head) -> None:
    """Delete the entries and snapshots that the head does not need. Others may be doing the same,
    and may be writing a newer snapshot."""
    names = [int(name) for name in await session.children(LOG) if int(name) < head.first]
    for start in range(0, len(names), DELETIONS_AT_ONCE):
        await _delete_all(session, [entry_path(it) for it in names[start:][:DELETIONS_AT_ONCE]])
    for name in await session.children(SNAPSHOTS):
        if name < head.snapshot:
            path = snapshot_path(name)
            with contextlib.suppress(NoNode):
                chunks = await session.children(path)
                await _delete_all(session, [*(f"{path}/{chunk}" for chunk in chunks), path])


async def _delete_all(session: ZooKeeperSession, paths: list[str]) -> None:
    try:
        await session.commit([Delete(path) for path in paths])
    except NoNode:  # another broker has begun, too
        for path in paths:
            with contextlib.suppress(NoNode):
                await session.delete(path)
