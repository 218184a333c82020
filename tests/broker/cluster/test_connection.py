"""TLS and SASL to a real ZooKeeper, and what is said when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import uuid
from pathlib import Path

import pytest
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Id, Permissions

from millstream.broker.cluster.connection import ACLS, Handler, access_of
from millstream.broker.cluster.security import Access, ZooKeeperSecurity
from millstream.broker.cluster.session import Create, ZooKeeperSession
from millstream.testing.zookeeper import ZooKeeperProcess
from tests.broker.cluster.clusters import Cluster, eventually
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import Certificates
from tests.peers.zookeeper import BROKERS_USER, SecuredZooKeeper


@pytest.fixture
def cluster(secured_zookeeper: SecuredZooKeeper) -> Cluster:
    return Cluster(secured_zookeeper.address, f"/test-{uuid.uuid4().hex}")


@pytest.fixture
def tls_cluster(secured_zookeeper: SecuredZooKeeper, cluster: Cluster) -> Cluster:
    return cluster.through(secured_zookeeper.secure_address)


def tls(zookeeper: SecuredZooKeeper, store: Path | None = None) -> ZooKeeperSecurity:
    return ZooKeeperSecurity(lambda: zookeeper.certificates.client_context(store))


async def failure(cluster: Cluster, security: ZooKeeperSecurity) -> str:
    """Why it cannot connect."""
    session = ZooKeeperSession(cluster.hosts, session_timeout_ms=20_000, security=security)
    starting = asyncio.ensure_future(session.start(PATIENCE_SECONDS))
    await eventually(lambda: session._failures or starting.done())
    starting.cancel()
    await asyncio.wait({starting})
    await session.close()
    return "; ".join(f"{server}: {reason}" for server, reason in session._failures.items())


def test_session_with_tls_carries_much_and_comes_back(
    secured_zookeeper: SecuredZooKeeper, tls_cluster: Cluster
) -> None:
    async def scenario() -> None:
        async with tls_cluster.secured(tls(secured_zookeeper)).session() as session:
            await session.ensure("/x")
            data = {f"/x/{it}": bytes([it]) * (it * 300) for it in range(100)}
            await asyncio.gather(*(session.create(*it) for it in data.items()))
            found = await asyncio.gather(*(session.get(path) for path in data))
            assert [it.data for it in found] == list(data.values())
            session._client.sockets.drop_connection()
            await eventually(lambda: not session.is_connected)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await session.wait_until_connected()
            assert len(await session.children("/x")) == 100

    asyncio.run(scenario())


def test_login_gives_nodes_an_owner(cluster: Cluster) -> None:
    async def scenario() -> None:
        owner = cluster.secured(ZooKeeperSecurity(login=BROKERS_USER, sets_acls=True))
        async with owner.session() as session:
            await session.ensure("/brokers/ids")
            await session.commit([Create("/brokers/ids/1", b"", ephemeral=True)])
            for path in ("/brokers/ids/1", "/brokers/ids", "/brokers", ""):
                acls, _ = await asyncio.to_thread(session._client.get_acls, cluster.chroot + path)
                mine = ACL(Permissions.ALL, Id("sasl", BROKERS_USER[0]))
                assert acls == [mine, ACL(Permissions.READ, ANYONE_ID_UNSAFE)]

    asyncio.run(scenario())


def test_wrong_passwords_and_unknown_users_are_named_without_secrets(cluster: Cluster) -> None:
    async def scenario() -> None:
        for login in ((BROKERS_USER[0], "wrong-one"), ("nobody", "wrong-one")):
            said = await failure(cluster, ZooKeeperSecurity(login=login))
            assert f"login of user {login[0]} is refused: check its password" in said
            assert "wrong-one" not in said

    asyncio.run(scenario())


@pytest.mark.slow
def test_login_at_a_server_without_sasl_says_so(zookeeper: ZooKeeperProcess) -> None:
    plain = Cluster(zookeeper.address, "/x")
    said = asyncio.run(failure(plain, ZooKeeperSecurity(login=BROKERS_USER)))
    assert "it has no SASL: set authProvider.sasl" in said


@pytest.mark.slow
def test_failures_of_tls_are_explained(
    secured_zookeeper: SecuredZooKeeper, cluster: Cluster, tls_cluster: Cluster, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path, "stranger")

    async def scenario() -> None:
        distrusting = ZooKeeperSecurity(stranger.client_context)
        assert "its certificate is refused" in await failure(tls_cluster, distrusting)
        shown = ZooKeeperSecurity(
            lambda: secured_zookeeper.certificates.client_context(stranger.sign("broker"))
        )
        assert "TLS failed" in await failure(tls_cluster, shown)
        assert "TLS failed" in await failure(cluster, tls(secured_zookeeper))
        said = await failure(tls_cluster, ZooKeeperSecurity())
        assert "whether it needs zookeeper.ssl.client.enable=true" in said
        elsewhere = Cluster(f"localhost:{secured_zookeeper.secure_port}", "/x")
        said = await failure(elsewhere, tls(secured_zookeeper))
        assert "Hostname mismatch" in said

    asyncio.run(scenario())


@pytest.mark.slow
def test_session_goes_on_when_the_password_is_right_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        there = cluster.secured(ZooKeeperSecurity(login=BROKERS_USER))
        async with there.session() as session:
            client = session._client
            client._security = ZooKeeperSecurity(login=(BROKERS_USER[0], "stale"))
            client.sockets.drop_connection()
            await eventually(lambda: "is refused" in caplog.text)
            assert not session.is_connected
            client._security = there.security
            async with asyncio.timeout(PATIENCE_SECONDS):
                await session.wait_until_connected()
                await session.sync()

    asyncio.run(scenario())


def test_what_is_decrypted_already_is_read() -> None:
    """Two answers in one record of TLS: the system reports nothing more to read."""

    class Decrypted(ssl.SSLSocket):
        def __init__(self) -> None:
            pass

        def pending(self) -> int:
            return 1

        def fileno(self) -> int:
            return server.fileno()

        def __del__(self) -> None:
            pass

    client, server = socket.socketpair()
    with contextlib.closing(client), contextlib.closing(server):
        quiet = Decrypted()
        handler = Handler(1.0, None)
        assert handler.select([quiet], [], [], 60) == ([quiet], [], [])
        assert handler.select([client], [], [], 0) == ([], [], [])


@pytest.mark.parametrize("access", list(Access))
def test_access_is_read_from_acls(access: Access) -> None:
    assert access_of(ACLS[access]) is access


def test_right_to_change_makes_a_node_open() -> None:
    for right in (Permissions.WRITE, Permissions.CREATE, Permissions.DELETE, Permissions.ADMIN):
        assert access_of([ACL(right, ANYONE_ID_UNSAFE)]) is Access.OPEN
