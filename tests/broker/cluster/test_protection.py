"""With zookeeper.set.acl, others cannot change the cluster's nodes, nor read its metadata."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoChildrenForEphemeralsError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from millstream.broker.cluster.nodes import LOG, entry_path
from millstream.broker.cluster.protection import secure_nodes
from millstream.broker.cluster.security import Access, ZooKeeperSecurity
from millstream.broker.cluster.session import ZooKeeperError
from millstream.broker.metadata.topics import NewTopic
from millstream.errors import MillstreamError
from tests.broker.cluster.clusters import Cluster, eventually
from tests.broker.cluster.test_joining import running
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.zookeeper import AUTHENTICATION, BROKERS_USER, OTHER_USER, SecuredZooKeeper

OWNER = ZooKeeperSecurity(login=BROKERS_USER, sets_acls=True)
PRIVATE = ("/millstream", "/millstream/metadata/head", "/millstream/metadata/log/0000000001")
READABLE = ("", "/brokers/ids/1", "/controller", "/controller_epoch", "/cluster/id")


@pytest.fixture
def cluster(secured_zookeeper: SecuredZooKeeper) -> Cluster:
    return Cluster(secured_zookeeper.address, f"/test-{uuid.uuid4().hex}/cluster")


@pytest.fixture
def stranger(secured_zookeeper: SecuredZooKeeper) -> Iterator[KazooClient]:
    """A client that nobody knows."""
    client = KazooClient(secured_zookeeper.address, timeout=20.0)
    client.start(PATIENCE_SECONDS)
    yield client
    client.stop()
    client.close()


def jaas(user: tuple[str, str]) -> str:
    module = f"{AUTHENTICATION}.DigestLoginModule"
    return f'{module} required username="{user[0]}" password="{user[1]}";'


def logged_in(user: tuple[str, str], *, acl: str = "true") -> dict[str, str]:
    return {"zookeeper_set_acl": acl, "millstream_zookeeper_sasl_jaas_config": jaas(user)}


def check_is_protected(stranger: KazooClient, chroot: str) -> None:
    for path in (*PRIVATE, *READABLE):
        node = chroot + path
        for attempt in (
            lambda node=node: stranger.set(node, b"{}"),
            lambda node=node: stranger.create(f"{node}/x"),
            lambda node=node: stranger.set_acls(node, OPEN_ACL_UNSAFE),
        ):
            with pytest.raises((NoAuthError, NoChildrenForEphemeralsError)):
                attempt()
    for path in ("/controller", "/controller_epoch", "/brokers/ids/1", "/cluster/id"):
        with pytest.raises(NoAuthError):
            stranger.delete(chroot + path)
    for path in PRIVATE:
        with pytest.raises(NoAuthError):
            stranger.get(chroot + path)
    for path in READABLE:
        stranger.get(chroot + path)


def test_strangers_can_change_nothing_and_read_no_metadata(
    cluster: Cluster, stranger: KazooClient, tmp_path: Path
) -> None:
    async def scenario() -> None:
        settings = logged_in(BROKERS_USER)
        async with running(cluster, tmp_path / "1", 1, **settings) as one:
            await one.actions.create_topics([NewTopic("t", 1)])
            await eventually(lambda: one.services.controller_id == 1)
            await asyncio.to_thread(check_is_protected, stranger, cluster.chroot)
        with pytest.raises(ZooKeeperError, match="belongs to another identity"):
            async with running(cluster, tmp_path / "2", 2):
                pass
        other = logged_in(OTHER_USER, acl="false")
        with pytest.raises(ZooKeeperError, match="belongs to another identity"):
            async with running(cluster, tmp_path / "2", 2, **other):
                pass
        async with running(cluster, tmp_path / "1", 1, **settings) as one:
            assert "t" in one.metadata.image.topics

    asyncio.run(scenario())


def test_node_that_was_restricted_further_stays_so(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.secured(OWNER).session() as session:
            await session.ensure("/brokers/ids")
            await session.set_access("/brokers/ids", Access.PRIVATE)
            await session.set_access("/brokers", Access.OPEN)
            await secure_nodes(session)
            assert await session.access("/brokers/ids") is Access.PRIVATE
            assert await session.access("/brokers") is Access.READABLE

    asyncio.run(scenario())


def test_rights_of_single_others_are_removed(
    cluster: Cluster, stranger: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    """As someone could have added them while the cluster was open."""
    mine = make_digest_acl_credential("eve", "secret")
    rights = [ACL(Permissions.ALL, Id("digest", mine)), ACL(Permissions.READ, Id("ip", "10.0.0.9"))]

    async def scenario() -> None:
        async with cluster.secured(OWNER).session() as session:
            await session.ensure("/brokers/ids")
            await session.ensure(LOG)
            for path in ("", "/brokers/ids", LOG):
                await session.set_access(path, Access.OPEN)
                node, acls = cluster.chroot + path, [*OPEN_ACL_UNSAFE, *rights]
                await asyncio.to_thread(stranger.set_acls, node, acls)
            await session.set_access("/brokers", Access.PRIVATE)
            await secure_nodes(session)
            for path in ("", "/brokers/ids", LOG):
                _, identities = await session.rights(path)
                assert identities == {f"sasl:{BROKERS_USER[0]}"}
            assert await session.access("/brokers/ids") is Access.READABLE
            assert await session.access("/brokers") is Access.PRIVATE
            caplog.clear()
            await secure_nodes(session)
            assert "are removed" not in caplog.text

    asyncio.run(scenario())
    stranger.add_auth("digest", "eve:secret")
    with pytest.raises(NoAuthError):
        stranger.get(cluster.chroot + LOG)


def test_broker_of_another_cluster_changes_no_rights(
    secured_zookeeper: SecuredZooKeeper, stranger: KazooClient, tmp_path: Path
) -> None:
    """It is refused because of its cluster id, before it secures what is not its own."""
    one, other = (Cluster(secured_zookeeper.address, f"/test-{uuid.uuid4().hex}") for _ in range(2))

    async def scenario() -> None:
        async with running(one, tmp_path / "1", 1), running(other, tmp_path / "2", 1):
            pass
        with pytest.raises(MillstreamError, match="belongs to cluster"):
            async with running(other, tmp_path / "1", 1, **logged_in(BROKERS_USER)):
                pass

    asyncio.run(scenario())
    assert stranger.get_acls(f"{other.chroot}/millstream")[0] == OPEN_ACL_UNSAFE


@pytest.mark.slow
def test_open_cluster_is_secured_by_a_rolling_restart(
    cluster: Cluster, stranger: KazooClient, tmp_path: Path
) -> None:
    """Brokers log in first, then they set ACLs, one after the other."""

    async def scenario() -> None:
        async with running(cluster, tmp_path / "1", 1) as one:
            await one.actions.create_topics([NewTopic("before", 1)])
        async with contextlib.AsyncExitStack() as stack:
            behind = logged_in(BROKERS_USER, acl="false")
            last = await stack.enter_async_context(running(cluster, tmp_path / "2", 2, **behind))
            ahead = logged_in(BROKERS_USER)
            async with running(cluster, tmp_path / "1", 1, **ahead) as one:
                await last.actions.create_topics([NewTopic("between", 1)])
                await eventually(lambda: "between" in one.metadata.image.topics)
        async with (
            running(cluster, tmp_path / "2", 2, **logged_in(BROKERS_USER)) as two,
            running(cluster, tmp_path / "1", 1, **logged_in(BROKERS_USER)),
        ):
            assert {"before", "between"} <= set(two.metadata.image.topics)
            await eventually(lambda: two.services.controller_id in (1, 2))
            await asyncio.to_thread(check_is_protected, stranger, cluster.chroot)
            async with cluster.secured(OWNER).session() as session:
                entries = [entry_path(int(name)) for name in await session.children(LOG)]
                assert {await session.access(path) for path in entries} == {Access.PRIVATE}

    asyncio.run(scenario())


@pytest.mark.slow
def test_brokers_are_known_by_their_certificate(
    secured_zookeeper: SecuredZooKeeper, cluster: Cluster, stranger: KazooClient, tmp_path: Path
) -> None:
    """All show the same name, each with a key of its own."""
    there = cluster.through(secured_zookeeper.secure_address)
    certificates = secured_zookeeper.certificates

    def settings(name: str) -> dict[str, str]:
        return {
            "zookeeper_set_acl": "true",
            "zookeeper_ssl_client_enable": "true",
            "zookeeper_ssl_truststore_location": str(certificates.authority),
            "zookeeper_ssl_keystore_location": str(certificates.sign(name)),
        }

    async def scenario() -> None:
        first = settings("millstream")
        async with running(there, tmp_path / "1", 1, **first) as one:
            second = settings("millstream")
            async with running(there, tmp_path / "2", 2, **second) as two:
                await two.actions.create_topics([NewTopic("t", 1)])
                await eventually(lambda: "t" in one.metadata.image.topics)
                await eventually(lambda: one.services.controller_id == 1)
                await asyncio.to_thread(check_is_protected, stranger, cluster.chroot)
            with pytest.raises(ZooKeeperError, match="belongs to another identity"):
                async with running(there, tmp_path / "3", 3, **settings("someone")):
                    pass

    asyncio.run(scenario())


def test_root_of_zookeeper_is_left_alone(
    secured_zookeeper: SecuredZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Cluster(secured_zookeeper.address, "", OWNER).session() as session:
            await secure_nodes(session)
            assert await session.access("") is Access.OPEN

    asyncio.run(scenario())
    assert "the root of ZooKeeper is open" in caplog.text
