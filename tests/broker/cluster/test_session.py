"""The session with a real ZooKeeper: connections are cut, answers lost, sessions expire."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from millstream.broker.cluster.session import (
    REQUESTS_MAX,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotConnected,
    NotEmpty,
    OutcomeUnknown,
    SessionEvent,
    SetData,
    ZooKeeperError,
    ZooKeeperSession,
)
from millstream.testing.zookeeper import ZooKeeperProcess
from tests.broker.cluster.clusters import SHORT_SESSION_MS, Cluster, eventually, expire
from tests.peers.cutting_proxy import CuttingProxy, cutting_proxy
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port
from tests.peers.zookeeper import LONGEST_SESSION_MS, SHORTEST_SESSION_MS


def test_nodes_are_created_below_the_chroot_read_and_deleted(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            await session.ensure("/a")
            await session.ensure("/a")
            await session.create("/a/b", b"1")
            node = await session.get("/a/b")
            assert (node.data, node.version, node.ephemeral_owner) == (b"1", 0, 0)
            assert await session.children("/a") == ["b"]
            assert await session.find("/a/c") is None
            with pytest.raises(NotEmpty):
                await session.delete("/a")
            with pytest.raises(NodeExists):
                await session.create("/a/b")
            await session.delete("/a/b")
            with pytest.raises(NoNode, match="/a/b"):
                await session.get("/a/b")
        root = Cluster(cluster.address, "")
        async with root.session() as session:
            assert await session.children(cluster.chroot) == ["a"]
            assert "zookeeper" in await session.children("")

    asyncio.run(scenario())


def test_transaction_is_carried_out_as_a_whole_or_not_at_all(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            await session.ensure("/a")
            await session.commit([Check("/a", 0), SetData("/a", b"1", 0), Create("/b", b"", True)])
            assert (await session.get("/b")).ephemeral_owner == session.id
            with pytest.raises(BadVersion) as caught:
                await session.commit([SetData("/b", b"2"), SetData("/a", b"2", 0), Delete("/b")])
            assert caught.value.path == "/a"
            assert (await session.get("/b")).version == 0

    asyncio.run(scenario())


def test_more_requests_than_fit_wait_for_their_turn(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            await session.ensure("/a")
            nodes = await asyncio.gather(*(session.get("/a") for _ in range(5 * REQUESTS_MAX)))
            assert len(nodes) == 5 * REQUESTS_MAX

    asyncio.run(scenario())


def test_request_without_a_connection_is_refused_at_once(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).session() as session:
            await session.ensure("/a")
            proxy.refuses = True
            proxy.cut()
            await eventually(lambda: not session.is_connected)
            for _ in range(1_000):  # kazoo would block at the 278th
                with pytest.raises(NotConnected, match="no connection to ZooKeeper at"):
                    await session.create("/a/late")
            proxy.heal()
            await session.wait_until_connected()
            assert await session.children("/a") == []

    asyncio.run(scenario())


def test_request_whose_answer_is_lost_has_an_unknown_outcome(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).session() as session:
            await session.ensure("/a")
            proxy.lose_answer_to(b"/a/victim")
            with pytest.raises(OutcomeUnknown):
                await session.create("/a/victim")
            proxy.heal()
            await session.wait_until_connected()
            assert await session.children("/a") == ["victim"]

    asyncio.run(scenario())


def test_request_that_is_lost_has_an_unknown_outcome(cluster: Cluster, proxy: CuttingProxy) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).session() as session:
            await session.ensure("/a")
            proxy.request_filter = lambda chunk: None if b"/a/victim" in chunk else chunk
            with pytest.raises(OutcomeUnknown):
                await session.create("/a/victim")
            proxy.heal()
            await session.wait_until_connected()
            assert await session.children("/a") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("asked_ms", "granted_ms"),
    [(500, SHORTEST_SESSION_MS), (10**6, LONGEST_SESSION_MS), (1_500, 1_500)],
)
def test_session_has_the_timeout_that_the_server_grants(
    cluster: Cluster, asked_ms: int, granted_ms: int
) -> None:
    async def scenario() -> None:
        session = ZooKeeperSession(cluster.hosts, session_timeout_ms=asked_ms)
        await session.start(PATIENCE_SECONDS)
        await eventually(lambda: session.timeout_ms == granted_ms)
        await session.close()

    asyncio.run(scenario())


def test_proof_of_the_session_ends_before_the_session(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.session() as other:
            await other.ensure("/a")
            async with cluster.through(proxy.address).session(SHORT_SESSION_MS) as session:
                await session.commit([Create("/a/b", b"", True)])
                await eventually(lambda: session.is_proved)
                proxy.silence()
                while await other.find("/a/b") is not None:
                    await asyncio.sleep(0.005)
                assert not session.is_proved
                proxy.heal()
                await eventually(lambda: session.is_proved)

    asyncio.run(scenario())


def test_session_goes_on_at_another_server_when_one_falls_silent(
    cluster: Cluster, proxy: CuttingProxy, zookeeper: ZooKeeperProcess
) -> None:
    async def scenario() -> None:
        with cutting_proxy("127.0.0.1", zookeeper.port) as second:
            through = cluster.through(proxy.address, second.address)
            async with through.session(6_000) as session:  # it waits a third of that
                await eventually(lambda: session.is_proved)
                session_id = session.id
                used = proxy if proxy._pairs else second
                events: list[SessionEvent] = []
                session.listeners.append(events.append)
                used.silence()
                await eventually(lambda: SessionEvent.DISCONNECTED in events)
                await eventually(lambda: len(events) > 1 and session.is_proved)
                assert session.id == session_id, events
                used.heal()

    asyncio.run(scenario())


def test_expired_session_is_replaced_by_a_new_one(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as session:
            events: list[SessionEvent] = []
            session.listeners.append(events.append)
            await session.ensure("/a")
            await session.commit([Create("/a/b", b"", True)])
            await eventually(lambda: session.is_proved)
            former = session.id
            await asyncio.to_thread(expire, cluster.address, session)
            await eventually(lambda: SessionEvent.NEW_SESSION in events)
            assert session.id != former
            assert SessionEvent.DISCONNECTED in events
            await eventually(lambda: session.is_proved)
            assert await session.children("/a") == []

    asyncio.run(scenario())


def test_watch_fires_once_for_a_change_and_for_a_lost_connection(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.session() as other, cluster.through(proxy.address).session() as session:
            await other.ensure("/a")
            fired: list[int] = []

            def watcher() -> None:
                fired.append(len(fired))

            for _ in range(3):  # the same watcher, three times
                await session.get("/a", watcher)
            await other.commit([SetData("/a", b"1")])
            await other.commit([SetData("/a", b"2")])
            await eventually(lambda: fired)
            assert (await session.get("/a", watcher)).data == b"2"
            await session.sync()
            assert len(fired) == 1
            proxy.cut()
            await eventually(lambda: len(fired) == 2)
            await session.wait_until_connected()
            assert await session.find("/a/new", watcher) is None
            await other.create("/a/new")
            await eventually(lambda: len(fired) == 3)

    asyncio.run(scenario())


def test_closed_session_leaves_no_ephemeral_nodes(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.session() as other:
            await other.ensure("/a")
            async with cluster.session() as session:
                await session.commit([Create("/a/b", b"", True)])
            assert await other.children("/a") == []
            assert not session.is_proved
            with pytest.raises(NotConnected):
                await session.get("/a")

    asyncio.run(scenario())


def test_start_names_the_addresses_where_no_server_answers() -> None:
    async def scenario() -> None:
        session = ZooKeeperSession(f"127.0.0.1:{free_port()}/x", session_timeout_ms=1_000)
        session._not_connected("127.0.0.1:1", "Connection refused")
        told = r"no ZooKeeper server answers at 127.0.0.1:.*/x .*\(.*: Connection refused\)"
        with pytest.raises(ZooKeeperError, match=told):
            await session.start(0.2)

    asyncio.run(scenario())


def test_attempts_at_several_servers_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        servers = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        session = ZooKeeperSession(",".join(servers), session_timeout_ms=1_000)
        starting = asyncio.ensure_future(session.start(PATIENCE_SECONDS))
        attempts = 0
        note = session.on_failure

        def counted(server: str, reason: str) -> None:
            nonlocal attempts
            attempts += 1
            note(server, reason)

        session.on_failure = counted  # type: ignore[method-assign]
        await eventually(lambda: attempts > 6)
        starting.cancel()
        await asyncio.wait({starting})
        await session.close()
        logged = [it.getMessage() for it in caplog.records if "cannot connect" in it.message]
        assert len(logged) == 3
        assert all(any(server in it for it in logged) for server in servers)

    asyncio.run(scenario())


def test_unanswered_requests_fail_when_the_session_is_closed(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).session() as session:
            await session.ensure("/a")
            proxy.silence()
            waiting = asyncio.ensure_future(session.get("/a"))
            await asyncio.sleep(0)
            with contextlib.suppress(Exception):
                await session.close()
            with pytest.raises(OutcomeUnknown):
                await waiting

    asyncio.run(scenario())
