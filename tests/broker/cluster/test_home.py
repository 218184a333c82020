"""The ordered log in a real ZooKeeper: several writers, lost answers, former controllers.

What every home promises is in tests/broker/metadata/test_contract.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from millstream.broker.cluster import home as home_module
from millstream.broker.cluster.home import Fenced, ZooKeeperMetadata
from millstream.broker.cluster.nodes import HEAD, LOG, NONCE_BYTES, SNAPSHOTS, Head, entry_path
from millstream.broker.cluster.session import Check, Create, SetData
from millstream.broker.metadata.actions import LoggedActions
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.topics import TopicManager
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_features import INITIAL_FEATURES
from millstream.coordination.cluster_records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
)
from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.record import Record, decode_batch, encode_batch
from tests.broker.cluster.clusters import Broker, Cluster, eventually
from tests.peers.cutting_proxy import CuttingProxy


def setting(name: str, value: str) -> ConfigRecord:
    return ConfigRecord(ResourceType.GROUP, "g", name, value)


def settings(image: ClusterImage) -> dict[str, str]:
    return dict(image.config(ResourceType.GROUP, "g"))


def one_more(image: ClusterImage) -> Sequence[MetadataRecord]:
    return [setting("count", str(int(settings(image).get("count", "0")) + 1))]


def once(image: ClusterImage) -> Sequence[MetadataRecord]:
    """A decision that a second attempt would refuse."""
    if "once" in settings(image):
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
    return [setting("once", "1")]


def test_concurrent_writers_lose_and_double_nothing(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home() as one, cluster.home() as two, cluster.home() as three:

            async def work(home: ZooKeeperMetadata) -> None:
                for _ in range(20):
                    await home.change(one_more)

            await asyncio.gather(work(one), work(two), work(three), work(one))
            for home in (one, two, three):
                assert settings(await home.refresh()) == {"count": "80"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("level", "why"),
    [
        (FeatureLevelRecord("metadata.version", 31), "metadata.version is 31, but this version"),
        (FeatureLevelRecord("new.version", 2), "does not have that feature"),
    ],
)
def test_cluster_of_a_newer_version_is_not_joined(
    cluster: Cluster, level: FeatureLevelRecord, why: str
) -> None:
    async def scenario() -> None:
        async with cluster.home() as newer:
            await newer.change(lambda image: [level])
            with pytest.raises(StorageError, match=f"was upgraded to a newer version.*{why}"):
                async with cluster.home():
                    pass

    asyncio.run(scenario())


async def rewrite_last_entry(
    cluster: Cluster, home: ZooKeeperMetadata, change: Callable[[bytes], bytes]
) -> None:
    """Put other records in the place of the last ones that were committed."""
    async with cluster.session() as session:
        path = entry_path(home._entry)
        entry = (await session.get(path)).data
        nonce, records = entry[:NONCE_BYTES], decode_batch(entry, NONCE_BYTES)
        changed = [Record(it.offset, 0, None, change(it.value or b"")) for it in records]
        await session.commit([SetData(path, nonce + encode_batch(changed))])


def test_record_of_a_newer_version_is_not_guessed_at(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home() as newer:
            await newer.change(lambda image: [setting("x", "1")])
            await rewrite_last_entry(cluster, newer, lambda it: it[:2] + b"\x7f" + it[3:])
            with pytest.raises(StorageError, match="ConfigRecord of version 127"):
                async with cluster.home():
                    pass

    asyncio.run(scenario())


def test_metadata_that_cannot_be_read_are_not_taken_for_newer_ones(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home() as home:
            await home.change(lambda image: [setting("x", "1")])
            await rewrite_last_entry(cluster, home, lambda it: it[:-4])
            with pytest.raises(StorageError, match=r"cannot be read: .*; restore the data"):
                async with cluster.home():
                    pass

    asyncio.run(scenario())


async def start_older(cluster: Cluster, node_id: int, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker of a version that does not have `share.version` yet."""
    with monkeypatch.context() as before:
        before.delitem(INITIAL_FEATURES, "share.version")
        broker = await cluster.start_broker(node_id, is_registered=False)
        newer = broker.registration()
        features = tuple(it for it in newer.features if it.name != "share.version")
        await broker.home.register(newer._replace(features=features))
    return broker


def test_level_rises_when_the_last_broker_is_registered_after_its_upgrade(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it was killed, and is still known with what it supported before."""

    async def scenario() -> None:
        one = await start_older(cluster, 1, monkeypatch)
        await one.die()
        async with cluster.broker(1, directory=one.directory) as upgraded:
            assert upgraded.home.image.features["share.version"] == 1

    asyncio.run(scenario())


async def unregister(home: ZooKeeperMetadata, broker_id: int) -> None:
    configs = ConfigManager(home, BrokerConfig())
    await LoggedActions(home, configs, TopicManager(home, configs)).unregister_broker(broker_id)


def test_level_rises_when_the_last_older_broker_is_unregistered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: it may come back as it was."""

    async def scenario() -> None:
        older = await start_older(cluster, 2, monkeypatch)
        await older.stop()
        async with cluster.broker(1) as one:
            assert one.is_fenced(2)
            assert "share.version" not in one.home.image.features
            await unregister(one.home, 2)
            assert one.home.image.features["share.version"] == 1
            assert set(one.home.image.brokers) == {1}

    asyncio.run(scenario())


@pytest.mark.parametrize("others_go_on", [False, True])
def test_commit_whose_answer_is_lost_succeeds_once(
    cluster: Cluster, proxy: CuttingProxy, others_go_on: bool
) -> None:
    async def scenario() -> None:
        async with cluster.home() as other, cluster.through(proxy.address).home() as home:
            before = home.image.version
            proxy.refuses = True  # the connection cannot come back
            proxy.lose_answer_to(b"/metadata/log/")
            change = asyncio.ensure_future(home.change(once))
            await eventually(lambda: other.image.version > before)
            if others_go_on:
                await other.change(one_more)
            proxy.heal()
            assert settings(await change)["once"] == "1"
            assert home.image == await other.refresh()
            assert home.image.version == before + 1 + others_go_on

    asyncio.run(scenario())


@pytest.mark.parametrize("others_go_on", [False, True])
def test_commit_that_is_lost_is_repeated(
    cluster: Cluster, proxy: CuttingProxy, others_go_on: bool
) -> None:
    async def scenario() -> None:
        async with cluster.home() as other, cluster.through(proxy.address).home() as home:
            lost = asyncio.Event()
            loop = asyncio.get_running_loop()

            def lose(chunk: bytes) -> bytes | None:
                if b"/metadata/log/" not in chunk:
                    return chunk
                loop.call_soon_threadsafe(lost.set)
                return None

            proxy.refuses = True
            proxy.request_filter = lose
            change = asyncio.ensure_future(home.change(once))
            await lost.wait()
            if others_go_on:
                await other.change(one_more)
            proxy.heal()
            assert settings(await change)["once"] == "1"
            assert home.image == await other.refresh()

    asyncio.run(scenario())


def test_former_controller_cannot_commit(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home() as home, cluster.session() as session:
            await session.ensure("/controller_epoch")
            await home.change_if(one_more, Check("/controller_epoch", 0))
            await session.commit([SetData("/controller_epoch", b"1", 0)])
            with pytest.raises(Fenced, match="/controller_epoch has changed"):
                await home.change_if(one_more, Check("/controller_epoch", 0))
            assert settings(await home.refresh()) == {"count": "1"}
            await home.change(one_more)

    asyncio.run(scenario())


def test_decision_that_refuses_counts_only_on_the_newest_image(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home() as one, cluster.home() as two:
            for number in range(10):
                name = f"n{number}"
                await one.change(lambda image, name=name: [setting(name, "1")])  # type: ignore[misc]

                def needs_it(image: ClusterImage, name: str = name) -> Sequence[MetadataRecord]:
                    if name not in settings(image):
                        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    return [setting(name, "2")] if settings(image)[name] == "1" else []

                assert settings(await two.change(needs_it))[name] == "2"

    asyncio.run(scenario())


def test_change_without_zookeeper_fails_and_the_next_one_succeeds(
    cluster: Cluster,
    proxy: CuttingProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(home_module, "CHANGE_SECONDS_MAX", 0.3)

    async def scenario() -> None:
        async with cluster.through(proxy.address).home() as home:
            proxy.refuses = True
            proxy.cut()
            with pytest.raises(ApiError, match=r"cannot reach ZooKeeper: whether .*") as caught:
                await home.change(one_more)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            check_is_plain(caught.value, cluster, caplog)
            assert f"{proxy.address}{cluster.chroot} did not answer within 0.3 s" in caplog.text
            with pytest.raises(ApiError, match="cannot reach ZooKeeper; try again") as caught:
                await home.refresh()
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            check_is_plain(caught.value, cluster, caplog)
            monkeypatch.undo()
            proxy.heal()
            assert settings(await home.change(one_more)) == {"count": "1"}

    asyncio.run(scenario())


def check_is_plain(error: ApiError, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """What clients read names neither servers nor nodes; the log does."""
    message = error.message
    assert message is not None
    assert "broker's log" in message
    assert "/" not in message
    assert "127.0.0.1" not in message
    assert cluster.chroot not in message
    assert "cannot read or change the cluster metadata" in caplog.text


def test_refusals_of_zookeeper_are_plain(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As if a part of the nodes had been given to someone else."""

    async def scenario() -> None:
        async with cluster.home() as home:
            await home.change(one_more)
            for path, perms in ((LOG, Permissions.READ), (HEAD, Permissions.WRITE)):
                acl = [ACL(perms, ANYONE_ID_UNSAFE)]
                await asyncio.to_thread(cluster.set_acls, path, acl)
                caplog.clear()
                with pytest.raises(ApiError, match="cannot be") as caught:
                    await (home.change(one_more) if path == LOG else home.refresh())
                assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
                check_is_plain(caught.value, cluster, caplog)
                assert "NoAuth" in caplog.text

    asyncio.run(scenario())


def test_image_follows_after_the_connection_was_lost(cluster: Cluster, proxy: CuttingProxy) -> None:
    async def scenario() -> None:
        async with cluster.home() as other, cluster.through(proxy.address).home() as home:
            proxy.refuses = True
            proxy.cut()
            for _ in range(5):
                await other.change(one_more)
            proxy.heal()
            await eventually(lambda: home.image == other.image)

    asyncio.run(scenario())


def test_snapshots_replace_entries(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home(snapshot_bytes=2_000) as home, cluster.session() as session:

            async def are_deleted() -> bool:
                entries = await session.children(LOG)
                first = Head.decode((await session.get(HEAD)).data).first
                return len(await session.children(SNAPSHOTS)) == 1 and int(entries[0]) >= first > 20

            image = home.image
            while home._is_snapshotting or not await are_deleted():
                image = await home.change(one_more)
            async with cluster.home() as late:
                assert late.image == image

    asyncio.run(scenario())


def test_snapshot_that_nobody_finished_is_deleted_with_the_next(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home(snapshot_bytes=2_000) as home, cluster.session() as session:
            await session.create(f"{SNAPSHOTS}/0000000003-dead", b"{}")
            await session.create(f"{SNAPSHOTS}/0000000003-dead/0", b"x")
            for _ in range(40):
                await home.change(one_more)
            while "0000000003-dead" in await session.children(SNAPSHOTS):
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_change_that_is_too_large_is_refused(cluster: Cluster) -> None:
    import secrets

    async def scenario() -> None:
        async with cluster.home() as home:
            before = home.image
            large = setting("a", secrets.token_hex(600_000))
            with pytest.raises(ApiError, match="split the request"):
                await home.change(lambda image: [large])
            assert home.image is before
            await home.change(one_more)

    asyncio.run(scenario())


def test_lost_metadata_are_noticed(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """As if the data of ZooKeeper were restored from an older backup."""

    async def scenario() -> None:
        async with cluster.home() as home, cluster.session() as session:
            await home.change(one_more)
            before = home.image
            await session.commit([SetData(HEAD, Head().encode())])
            with pytest.raises(ApiError, match="cannot be read") as caught:
                await home.refresh()
            check_is_plain(caught.value, cluster, caplog)
            assert "has lost cluster metadata" in caplog.text
            assert home.image is before

    asyncio.run(scenario())


def test_home_is_not_opened_on_entries_that_are_missing(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.home() as home, cluster.session() as session:
            await home.change(one_more)
            await session.delete(entry_path(2))
            with pytest.raises(StorageError, match="has lost cluster metadata"):
                async with cluster.home():
                    pass
            await session.commit([Create(entry_path(2), b"x")])

    asyncio.run(scenario())
