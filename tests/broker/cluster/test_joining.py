"""Whole brokers in one cluster: they see each other, and refuse what does not belong to them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.broker.cluster.home import ZooKeeperMetadata
from millstream.broker.cluster.joining import _all_flush
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_records import ConfigRecord
from millstream.errors import MillstreamError, StorageError
from tests.broker.cluster.clusters import SESSION_TIMEOUT_MS, Cluster, eventually, expire
from tests.peers.servers import free_port


def broker_config(cluster: Cluster, path: Path, node_id: int, **settings: str) -> BrokerConfig:
    return BrokerConfig.from_values(
        {
            "zookeeper.connect": cluster.hosts,
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "node.id": node_id,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(path),
        }
        | {name.replace("_", "."): value for name, value in settings.items()}
    )


@contextlib.asynccontextmanager
async def running(
    cluster: Cluster, path: Path, node_id: int, **settings: str
) -> AsyncIterator[BrokerServer]:
    server = BrokerServer(broker_config(cluster, path, node_id, **settings))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def test_brokers_share_topics_and_see_each_other_stop(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(cluster, tmp_path / "1", 1) as one:
            async with running(cluster, tmp_path / "2", 2) as two:
                assert one.cluster_id == two.cluster_id
                await eventually(lambda: set(one.metadata.image.brokers) == {1, 2})
                new = NewTopic("t", assignments=((0, (1,)), (1, (2,))))
                await one.actions.create_topics([new])
                await eventually(lambda: "t" in two.metadata.image.topics)
                assert two.metadata.image.topics["t"] == one.metadata.image.topics["t"]
                await eventually(lambda: two.metadata.is_live)
                await eventually(
                    lambda: one.services.controller_id == two.services.controller_id == 1
                )
            image = await one.metadata.refresh()
            assert image.brokers[2].fenced
            assert image.topics["t"].partitions[1].leader == -1

    asyncio.run(scenario())


def test_brokers_that_start_at_once_create_the_first_user_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    settings = {
        "listeners": "INTERNAL://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener_security_protocol_map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter_broker_listener_name": "INTERNAL",
        "sasl_jaas_config": "ScramLoginModule required username=admin password=first;",
    }

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            starting = (
                stack.enter_async_context(running(cluster, tmp_path / str(it), it, **settings))
                for it in (1, 2)
            )
            one, two = await asyncio.gather(*starting)
            users = (await one.metadata.refresh()).scram
            assert set(users) == {("admin", 1), ("admin", 2)}
            assert (await two.metadata.refresh()).scram == users
            await two.actions.alter_scram({("admin", 1): None, ("admin", 2): users["admin", 2]})
        async with running(cluster, tmp_path / "1", 1, **settings) as one:
            assert set(one.metadata.image.scram) == {("admin", 2)}, "it does not come back"

    asyncio.run(scenario())


def test_restarted_broker_leads_its_partitions_again(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(cluster, tmp_path, 1) as one:
            await one.actions.create_topics([NewTopic("t", 2)])
        async with running(cluster, tmp_path, 1) as one:
            partitions = one.metadata.image.topics["t"].partitions
            assert [it.leader for it in partitions] == [1, 1]
            assert not one.metadata.image.brokers[1].fenced

    asyncio.run(scenario())


def test_broker_whose_session_expired_leads_its_only_replicas_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with running(cluster, tmp_path / "1", 1) as one:
            await one.actions.create_topics([NewTopic("t", 1)])
            assert isinstance(one.metadata, ZooKeeperMetadata)
            await asyncio.to_thread(expire, cluster.address, one.metadata._session)
            await eventually(lambda: one.metadata.image.topics["t"].partitions[0].leader_epoch == 2)
            await eventually(lambda: one.partitions.find("t", 0).is_led_here)
            await eventually(lambda: one.metadata.is_live)

    asyncio.run(scenario())


def test_directory_of_another_cluster_is_refused_and_keeps_its_logs(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with running(cluster, tmp_path, 1) as one:
            await one.actions.create_topics([NewTopic("t", 1)])
            one.partitions.find("t", 0).log.create_files(0)
        before = sorted(path.name for path in tmp_path.iterdir())
        assert "t-0" in before
        elsewhere = Cluster(cluster.address, cluster.chroot + "/elsewhere")
        with pytest.raises(StorageError, match="belongs to cluster"):
            async with running(elsewhere, tmp_path, 1):
                pass
        assert sorted(path.name for path in tmp_path.iterdir()) == before

    asyncio.run(scenario())


def test_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith("millstream.broker.cluster"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    nowhere = Cluster("127.0.0.1:1", "")

    async def scenario() -> None:
        server = BrokerServer(broker_config(nowhere, tmp_path, 1))
        with pytest.raises(MillstreamError, match=r"kazoo: pip install 'millstream\[cluster\]'"):
            await server.start()

    asyncio.run(scenario())


def test_start_without_zookeeper_is_refused_and_leaves_the_directory_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        nowhere = Cluster(f"127.0.0.1:{free_port()}", "/x")
        settings = broker_config(nowhere, tmp_path / "d", 1).static
        config = BrokerConfig.from_values({**settings, "zookeeper.connection.timeout.ms": 300})
        with pytest.raises(MillstreamError, match="no ZooKeeper server answers"):
            await BrokerServer(config).start()
        assert not (tmp_path / "d").exists()

    asyncio.run(scenario())


def test_records_are_kept_if_every_topic_flushes_them() -> None:
    config = BrokerConfig.from_values({})
    off = ConfigRecord(ResourceType.TOPIC, "t", "millstream.acks.all.flush", "false")
    assert _all_flush(config, ClusterImage())
    assert not _all_flush(config, ClusterImage().apply([off], 0))
    unflushed = BrokerConfig.from_values({"millstream.acks.all.flush": "false"})
    assert not _all_flush(unflushed, ClusterImage())
