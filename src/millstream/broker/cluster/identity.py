"""The cluster's id in ZooKeeper, and the check that a broker's log directories belong to it.

    /cluster/id    {"version": "1", "id": "..."}, as Kafka writes it; created by the first broker

A broker whose directories belong to a cluster never creates it: a missing node means a wrong chroot
or a new ZooKeeper, in which all its logs would be strays.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from millstream.broker.cluster.session import NodeExists, ZooKeeperSession
from millstream.errors import StorageError
from millstream.storage.checkpoints import encode_uuid, random_uuid, read_meta_properties
from millstream.storage.filesystem import FileSystem

CLUSTER_ID = "/cluster/id"


async def find_cluster_id(session: ZooKeeperSession, fs: FileSystem, paths: Iterable[Path]) -> str:
    """The id of the cluster, which is created if neither ZooKeeper nor the log directories `paths`
    have one. Raises `StorageError` if they do not match."""
    known: dict[str, Path] = {}
    for path in paths:
        with contextlib.suppress(OSError):  # a failed directory; the broker deals with it
            meta = read_meta_properties(fs, str(path.absolute()))
            if meta is not None:
                known[meta.cluster_id] = path
    stored = await _read(session)
    if stored is None and not known:
        await _create(session)
        stored = await _read(session)
    for cluster_id, path in known.items():
        if cluster_id != stored:
            there = f"has cluster {stored}" if stored else "has no cluster"
            raise StorageError(
                f"log directory {path} belongs to cluster {cluster_id}, but ZooKeeper at "
                f"{session.hosts} {there}: check the addresses and the chroot; to found a new "
                "cluster, or to join another one, start with empty log directories"
            )
    assert stored is not None
    return stored


async def _read(session: ZooKeeperSession) -> str | None:
    await session.sync()
    node = await session.find(CLUSTER_ID)
    if node is None:
        return None
    try:
        return str(json.loads(node.data)["id"])
    except (ValueError, KeyError, TypeError):
        raise StorageError(
            f"ZooKeeper node {CLUSTER_ID} at {session.hosts} is not a cluster id: {node.data!r}"
        ) from None


async def _create(session: ZooKeeperSession) -> None:
    await session.ensure(CLUSTER_ID.rpartition("/")[0])
    content = {"version": "1", "id": encode_uuid(random_uuid())}
    with contextlib.suppress(NodeExists):  # another broker was faster
        await session.create(CLUSTER_ID, json.dumps(content).encode())
