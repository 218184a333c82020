"""Sessions and homes of one cluster in ZooKeeper, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import ACL

from millstream.broker.cluster.home import ZooKeeperMetadata
from millstream.broker.cluster.joining import ZooKeeperCluster
from millstream.broker.cluster.security import ZooKeeperSecurity
from millstream.broker.cluster.session import ZooKeeperSession
from millstream.broker.metadata.store import registration
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster_records import BrokerEndpoint, RegisterBrokerRecord
from millstream.testing.clock import ManualClock
from tests.peers.patience import PATIENCE_SECONDS

SESSION_TIMEOUT_MS = 20_000  # a busy machine stalls
SHORT_SESSION_MS = 3_000  # for brokers whose session has to end by its time-out


class Cluster:
    """A chroot of a ZooKeeper server, and an address to reach it, perhaps through a proxy."""

    def __init__(
        self, address: str, chroot: str, security: ZooKeeperSecurity | None = None
    ) -> None:
        self.address = address
        self.chroot = chroot
        self.security = security

    def through(self, *addresses: str) -> Cluster:
        return Cluster(",".join(addresses), self.chroot, self.security)

    def secured(self, security: ZooKeeperSecurity) -> Cluster:
        return Cluster(self.address, self.chroot, security)

    @property
    def hosts(self) -> str:
        return self.address + self.chroot

    def set_acls(self, path: str, acls: list[ACL]) -> None:
        """As a client of ZooKeeper that is not a broker."""
        client = KazooClient(self.hosts, timeout=20.0)
        client.start(PATIENCE_SECONDS)
        try:
            client.set_acls(path, acls)
        finally:
            client.stop()
            client.close()

    @contextlib.asynccontextmanager
    async def session(
        self, timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> AsyncIterator[ZooKeeperSession]:
        session = ZooKeeperSession(
            self.hosts, session_timeout_ms=timeout_ms, security=self.security
        )
        await session.start(PATIENCE_SECONDS)
        try:
            yield session
        finally:
            await session.close()

    @contextlib.asynccontextmanager
    async def home(
        self,
        timeout_ms: int = SESSION_TIMEOUT_MS,
        *,
        snapshot_bytes: int = 1 << 20,
        entries_kept: int = 10,
    ) -> AsyncIterator[ZooKeeperMetadata]:
        """The ordered log alone, without membership."""
        async with self.session(timeout_ms) as session:
            home = ZooKeeperMetadata(
                session, ManualClock(), snapshot_bytes=snapshot_bytes, entries_kept=entries_kept
            )
            await home.start()
            try:
                yield home
            finally:
                await home.close()

    @contextlib.asynccontextmanager
    async def broker(self, node_id: int, **options: Any) -> AsyncIterator[Broker]:
        """A member of the cluster, without a server."""
        broker = await self.start_broker(node_id, **options)
        try:
            yield broker
        finally:
            await broker.stop()

    async def start_broker(
        self,
        node_id: int,
        *,
        timeout_ms: int = SESSION_TIMEOUT_MS,
        directory: uuid.UUID | None = None,
        settings: dict[str, object] | None = None,
        is_registered: bool = True,
    ) -> Broker:
        session = ZooKeeperSession(
            self.hosts, session_timeout_ms=timeout_ms, security=self.security
        )
        await session.start(PATIENCE_SECONDS)
        config = BrokerConfig.from_values(settings or {})
        part = ZooKeeperCluster(session, config, "")
        directories: Any = SimpleNamespace(node_id=node_id, clean=False)
        home = await part.open(directories, config, ManualClock())
        broker = Broker(node_id, session, home, part, directory or uuid.uuid4())
        if is_registered:
            try:
                await home.register(broker.registration())
            except BaseException:
                await broker.stop()
                raise
        return broker


class Broker:
    """One member: its session, its home, its membership and candidacy."""

    def __init__(
        self,
        node_id: int,
        session: ZooKeeperSession,
        home: ZooKeeperMetadata,
        part: ZooKeeperCluster,
        directory: uuid.UUID,
    ) -> None:
        self.id = node_id
        self.session = session
        self.home = home
        self.part = part
        self.directory = directory

    def registration(self) -> RegisterBrokerRecord:
        return registration(
            self.id,
            [BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9000 + self.id)],
            epoch=0,
            rack=None,
            directories=[self.directory],
        )

    @property
    def is_controller(self) -> bool:
        return self.part.controller.is_active

    def is_fenced(self, node_id: int) -> bool:
        """As this broker sees it."""
        return self.home.image.brokers[node_id].fenced

    async def stop(self) -> None:
        await self.home.close()
        await self.part.close()

    async def die(self) -> None:
        """Stop like a killed process whose session has ended."""
        client_id = self.session._client.client_id
        await self.vanish()
        await asyncio.to_thread(_end_session, self.session.hosts.partition("/")[0], client_id)

    async def vanish(self) -> None:
        """Stop like a killed process: its session goes on until its time-out."""
        for task in (self.part.controller._task, self.part.membership._keeping):
            if task is not None:
                task.cancel()
        for task in list(self.home._tasks):
            task.cancel()
        client = self.session._client
        self.session._is_closed = True
        if self.session._heartbeat is not None:
            self.session._heartbeat.cancel()
        self.session._on_kazoo_state = lambda state: None  # type: ignore[method-assign]
        client._stopped.set()  # no reconnecting, and no request to close the session
        self.session._client.sockets.drop_connection()


def expire(address: str, session: ZooKeeperSession) -> None:
    """End the session on the server, as its time-out would."""
    _end_session(address, session._client.client_id)


def _end_session(address: str, client_id: tuple[int, bytes]) -> None:
    """Again, if its owner has been quicker to connect again than the request to end it."""
    is_there = True
    while is_there:
        second = KazooClient(address, client_id=client_id, timeout=10.0)
        second.start(PATIENCE_SECONDS)
        is_there = second.client_id[0] == client_id[0]
        second.stop()
        second.close()


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until it holds; only a failing test waits long."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "still not so"
        await asyncio.sleep(0.005)
