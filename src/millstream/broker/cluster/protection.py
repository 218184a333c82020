"""Nodes that were created without ACLs are given to the brokers' identity: see `security`.

A broker with `zookeeper.set.acl` looks at all nodes of the cluster when it starts. They may be
older than the setting, or of a broker that does not have it yet. As with Kafka's
zookeeper-security-migration, the rights that a node gives to single other users, certificates or
addresses are removed: while the cluster was open, anyone could have added some.

The node of the chroot is the cluster's as well: with the right to delete its children, anyone could
remove `/controller`. The root of ZooKeeper may have other users, so it is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set

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
    own = await _own_identities(session)
    if session.has_chroot:
        await _secure(session, ROOT, own)
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
            for children in await asyncio.gather(*(_secure(session, path, own) for path in paths)):
                below += children
        level = below


async def _own_identities(session: ZooKeeperSession) -> frozenset[str]:
    """As ZooKeeper writes them: the SASL user, the name in the certificate, or both."""
    await session.ensure(METADATA)
    await session.set_access(METADATA, session.security.access(METADATA))
    _, identities = await session.rights(METADATA)
    return identities


async def _secure(session: ZooKeeperSession, path: str, own: Set[str]) -> list[str]:
    """Returns the paths of its children."""
    wanted = session.security.access(path)
    with contextlib.suppress(NoNode):  # not yet, or no longer
        found, identities = await session.rights(path)
        others = identities - own
        is_too_open = _OPENNESS.index(found) > _OPENNESS.index(wanted)
        if others:
            logger.warning(
                "rights of %s on node %s are removed", ", ".join(sorted(others)), path or "/"
            )
        if is_too_open or others:
            # One that was closed further than wanted stays so.
            await session.set_access(path, wanted if is_too_open else found)
        return [f"{path}/{name}" for name in await session.children(path)]
    return []
