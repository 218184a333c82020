"""Clients with principals, and access control entries, for tests of an authorizer.

A connection gets its principal in the broker's memory, as an authentication would give it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.security.acls import (
    CLUSTER_NAME,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from millstream.security.principal import Principal
from tests.broker.serving import WireClient, serving

ADMIN = "admin"


@contextlib.asynccontextmanager
async def authorizing(directory: Path, **settings: object) -> AsyncIterator[BrokerServer]:
    """A broker with an authorizer, and `admin` as the super user."""
    values: dict[str, object] = {
        "authorizer_class_name": "StandardAuthorizer",
        "super_users": f"User:{ADMIN}",
    }
    async with serving(directory, **(values | settings)) as server:
        yield server


@contextlib.asynccontextmanager
async def connected_as(server: BrokerServer, user: str) -> AsyncIterator[WireClient]:
    known = set(server.connections._open)
    async with WireClient.connected(server) as client:
        await client.call(18, 0)  # the connection is there when it is answered
        (connection,) = server.connections._open - known
        connection._client.principal = Principal("User", user)
        yield client


def topic(name: str, operation: Operation, user: str = "alice", **changes: object) -> AclEntry:
    entry = AclEntry(
        *(ResourceType.TOPIC, name, PatternType.LITERAL, f"User:{user}", "*", operation),
        permission=Permission.ALLOW,
    )
    return entry._replace(**changes)  # type: ignore[arg-type]


def group(name: str, operation: Operation, user: str = "alice") -> AclEntry:
    return topic(name, operation, user, resource_type=ResourceType.GROUP)


def transaction(name: str, operation: Operation, user: str = "alice") -> AclEntry:
    return topic(name, operation, user, resource_type=ResourceType.TRANSACTIONAL_ID)


def cluster(operation: Operation, user: str = "alice") -> AclEntry:
    return topic(CLUSTER_NAME, operation, user, resource_type=ResourceType.CLUSTER)


async def allow(server: BrokerServer, *entries: AclEntry) -> None:
    await server.actions.create_acls(entries)


async def revoke(server: BrokerServer, *entries: AclEntry) -> None:
    await server.actions.delete_acls([AclFilter(*entry) for entry in entries])
