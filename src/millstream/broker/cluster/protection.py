"""Nodes that were created without ACLs are given to the brokers' identity: see `security`.

A broker with `zookeeper.set.acl` looks at all nodes of the cluster when it starts. They may be
older than the setting, or of a broker that does not have it yet.

The node of the chroot is the cluster's as well: with the right to delete its children, anyone could
remove `/controller`. The root of ZooKeeper may have other users, so it is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from millstream.broker.cluster.security import METADATA, Access
from millstream.broker.cluster.session import NoNode, ZooKeeperSession

logger = logging.getLogger(__name__)

TREES = ("/brokers", "/cluster", "/controller", "/controller_epoch", METADATA)
ROOT = ""
NODES_AT_ONCE = 50
_OPENNESS = (Access.PRIVATE, Access.READABLE, Access.OPEN)


async def secure_nodes(session: ZooKeeperSession) -> None:
    """Can be repeated. Raises `NoAccess` if a node belongs to another identity."""
    if not session.security.sets_acls:
        return
    if session.has_chroot:
        await _secure(session, ROOT)
    elif await session.access(ROOT) is Access.OPEN:
        logger.warning(
            "the root of ZooKeeper is open, so others can still delete /controller: use a chroot "
            "(zookeeper.connect=host:port/chroot), or restrict the root with ZooKeeper's setAcl"
        )
    level = list(TREES)
    while level:
        below: list[str] = []
        for start in range(0, len(level), NODES_AT_ONCE):
            paths = level[start : start + NODES_AT_ONCE]
            for children in await asyncio.gather(*(_secure(session, path) for path in paths)):
                below += children
        level = below


async def _secure(session: ZooKeeperSession, path: str) -> list[str]:
    """Returns the paths of its children."""
    wanted = session.security.access(path)
    with contextlib.suppress(NoNode):  # not yet, or no longer
        # One that was restricted further stays as it is.
        if _OPENNESS.index(await session.access(path)) > _OPENNESS.index(wanted):
            await session.set_access(path, wanted)
        return [f"{path}/{name}" for name in await session.children(path)]
    return []
