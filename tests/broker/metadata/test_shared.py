"""The metadata that workers share: what is not in the contract of all homes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from millstream.broker.metadata import shared
from millstream.broker.metadata.shared import METADATA_DIRECTORY, SharedMetadata, open_shared
from millstream.broker.metadata.store import registration
from millstream.clock import SystemClock
from millstream.config.broker import BrokerConfig
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.storage.checkpoints import MetaProperties, write_meta_properties
from millstream.storage.directories import LogDirectories
from millstream.storage.filesystem import OsFileSystem
from millstream.testing.clock import ManualClock
from tests.peers.patience import PATIENCE_SECONDS


def open_home(path: Path, fs: OsFileSystem | None = None, node_id: int = 1) -> SharedMetadata:
    return SharedMetadata(
        fs or OsFileSystem(), str(path), ManualClock(), node_id=node_id, snapshot_bytes=1 << 20
    )


def setting(value: str) -> ConfigRecord:
    return ConfigRecord(ResourceType.GROUP, "g", "a", value)


def test_failed_sync_refuses_the_commit_and_all_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = OsFileSystem()
    home = open_home(tmp_path, fs)
    before = home.image

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fs, "fdatasync", fail)
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            asyncio.run(home.change(lambda image: [setting("1")]))
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        monkeypatch.undo()  # a later sync would succeed, and must not be trusted
    assert home.image is before
    asyncio.run(home.close())


def test_event_loop_goes_on_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    async def scenario() -> None:
        home, other = open_home(tmp_path), open_home(tmp_path)
        with other._log.locked():
            change = asyncio.ensure_future(home.change(lambda image: [setting("1")]))
            for _ in range(20):  # the loop turns
                await asyncio.sleep(0.001)
            assert not change.done()
        assert (await change).config(ResourceType.GROUP, "g") == {"a": "1"}
        await home.close()
        await other.close()

    asyncio.run(scenario())


def test_commit_is_durable_before_others_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sync it: the writer may be killed before it has."""

    async def scenario() -> None:
        fs = OsFileSystem()
        writer, reader = open_home(tmp_path), open_home(tmp_path, fs)
        released = threading.Event()

        def wait(fd: int) -> None:
            released.wait()
            os.fdatasync(fd)

        monkeypatch.setattr(fs, "fdatasync", wait)
        await writer.change(lambda image: [setting("1")])
        refresh = asyncio.ensure_future(reader.refresh())
        await asyncio.sleep(0.01)
        assert reader.image.version < writer.image.version
        released.set()
        assert (await refresh) == writer.image
        await writer.close()
        await reader.close()

    asyncio.run(scenario())


def test_second_replica_of_a_partition_is_refused(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    topic_id = uuid.uuid4()
    records: list[MetadataRecord] = [
        TopicRecord("t", topic_id),
        PartitionRecord(0, topic_id, replicas=(1, 2), isr=(1, 2), leader=1),
    ]
    with pytest.raises(ApiError, match="Replication factor must be 1") as caught:
        asyncio.run(home.change(lambda image: records))
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert not home.image.topics
    asyncio.run(home.close())


def test_commit_returns_when_other_workers_have_published_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        one, two = open_home(tmp_path), open_home(tmp_path, node_id=2)
        two.follow()
        for node_id, home in ((1, one), (2, two)):
            await home.register(registration(node_id, [], epoch=node_id, rack=None, directories=[]))
        heard: list[int] = []
        two.subscribe(lambda before, now: heard.append(now.version))
        with monkeypatch.context() as patch:
            patch.setattr(shared, "OTHERS_SECONDS_MAX", PATIENCE_SECONDS)
            for number in range(10):
                image = await one.change(lambda image, it=number: [setting(str(it))])  # type: ignore[misc]
                assert heard[-1] == image.version == two.image.version
        await two.close()
        await one.close()

    asyncio.run(scenario())


def test_worker_that_does_not_answer_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "OTHERS_SECONDS_MAX", 0.01)

    async def scenario() -> None:
        home = open_home(tmp_path)
        await home.register(registration(2, [], epoch=2, rack=None, directories=[]))
        image = await home.change(lambda image: [setting("1")])
        assert image.config(ResourceType.GROUP, "g") == {"a": "1"}
        await home.close()

    asyncio.run(scenario())


COUNT = """
import asyncio, sys
from millstream.broker.metadata.shared import SharedMetadata
from millstream.clock import SystemClock
from millstream.coordination.cluster import ResourceType
from millstream.coordination.cluster_records import ConfigRecord
from millstream.storage.filesystem import OsFileSystem

async def main(path, name):
    home = SharedMetadata(OsFileSystem(), path, SystemClock(), node_id=1, snapshot_bytes=5_000)
    print("open", flush=True)
    while True:
        def decide(image):
            settings = image.config(ResourceType.GROUP, "g")
            return [
                ConfigRecord(ResourceType.GROUP, "g", key, str(int(settings.get(key, "0")) + 1))
                for key in ("total", name)
            ]
        image = await home.change(decide)
        print(image.config(ResourceType.GROUP, "g")[name], flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_killed_while_they_commit_lose_and_double_nothing(tmp_path: Path) -> None:
    """Each adds one to a total of its own and to one of all, in one commit."""
    acknowledged: dict[str, int] = {}
    for round_ in range(2):
        processes = {
            name: subprocess.Popen(
                [sys.executable, "-c", COUNT, str(tmp_path), name],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("a", "b")
        }
        for name, process in processes.items():
            assert process.stdout is not None
            for _ in range(30 + 7 * round_):
                line = process.stdout.readline().strip()
            acknowledged[name] = int(line)
        for process in processes.values():
            process.kill()
            process.communicate()
    home = open_home(tmp_path)
    settings = home.image.config(ResourceType.GROUP, "g")
    totals = {name: int(value) for name, value in settings.items()}
    assert totals["total"] == totals["a"] + totals["b"]
    assert all(totals[name] >= value for name, value in acknowledged.items())
    asyncio.run(home.close())


def cluster_directory(path: Path, cluster_id: str) -> str:
    fs = OsFileSystem()
    fs.make_directory(str(path))
    write_meta_properties(fs, str(path), MetaProperties(0, cluster_id, uuid.uuid4()))
    return str(path)


def test_worker_of_another_cluster_is_refused(tmp_path: Path) -> None:
    directories = LogDirectories.open([tmp_path / "worker"], cluster_id="mine")
    try:
        opening = open_shared(cluster_directory(tmp_path / "cluster", "another"))
        with pytest.raises(StorageError, match=r"belong to cluster mine, but .* to another"):
            asyncio.run(_open(opening, directories))
        with pytest.raises(StorageError, match=r"meta\.properties is missing"):
            asyncio.run(_open(open_shared(str(tmp_path / "nothing")), directories))
    finally:
        directories.abandon()


def test_worker_opens_the_metadata_of_its_cluster(tmp_path: Path) -> None:
    directories = LogDirectories.open([tmp_path / "worker"], cluster_id="mine")
    try:
        image = asyncio.run(
            _open(open_shared(cluster_directory(tmp_path / "cluster", "mine")), directories)
        )
    finally:
        directories.abandon()
    assert image.features
    assert (tmp_path / "cluster" / METADATA_DIRECTORY).is_dir()


async def _open(opening: object, directories: LogDirectories) -> ClusterImage:
    assert callable(opening)
    home = await opening(directories, BrokerConfig.from_values({}), SystemClock())
    await home.close()
    image = home.image
    assert isinstance(image, ClusterImage)
    return image
