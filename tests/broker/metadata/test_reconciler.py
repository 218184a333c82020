"""Logs follow the metadata: opened, reconfigured, deleted; strays and missing ones at the start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import uuid
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.metadata.reconciler import PARTITIONS_PER_TURN
from millstream.broker.metadata.topics import MorePartitions, NewTopic
from millstream.broker.replicas.partition import Partition
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import Resource, ResourceType, TopicImage
from millstream.errors import ApiError, DirectoryFailed, ErrorCode
from millstream.records.record import Record, encode_batch
from millstream.storage.checkpoints import encode_uuid
from millstream.storage.creation import NewLog
from millstream.storage.log import Log
from tests.broker.metadata.homes import home
from tests.broker.serving import serving


@asynccontextmanager
async def with_topic(directory: Path) -> AsyncIterator[BrokerServer]:
    async with serving(directory) as server:
        await server.topics.create([NewTopic("t", 2)])
        yield server


def test_partitions_open_grow_and_go_with_their_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_topic(tmp_path) as server:
            assert server.partitions.get("t", 1) is not None
            await server.topics.create_partitions([MorePartitions("t", 3)])
            assert server.partitions.get("t", 2) is not None
            await server.topics.delete([server.metadata.image.topics["t"].id])
            assert server.partitions.get("t", 0) is None
            assert not (tmp_path / "t-0").exists()

    asyncio.run(scenario())


def test_topic_made_anew_has_empty_logs_of_the_new_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_topic(tmp_path) as server:
            await server.topics.delete([server.metadata.image.topics["t"].id])
            await server.topics.create([NewTopic("t", 1)])
            log = server.directories.logs["t", 0]
            assert log.topic_id == server.metadata.image.topics["t"].id
            assert server.partitions.get_by_id(log.topic_id, 0) is not None

    asyncio.run(scenario())


def test_settings_reach_the_logs_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_topic(tmp_path) as server:
            log = server.directories.logs["t", 0]
            changes = (
                (Resource(ResourceType.TOPIC, "t"), "retention.ms"),
                (Resource(ResourceType.BROKER, ""), "log.segment.bytes"),
            )
            for resource, name in changes:
                change = Change(name, Operation.SET, "2000000")
                await server.configs.alter({resource: [change]}, validate_only=False)
            assert log.config.retention_ms == 2_000_000
            assert log.config.segment_bytes == 2_000_000

    asyncio.run(scenario())


def test_missing_logs_are_made_and_strays_deleted_at_the_start(tmp_path: Path) -> None:
    """A crash may come between a commit and what it does to the logs."""
    with home(tmp_path) as it:
        asyncio.run(it.topics.create([NewTopic("t", 1)]))  # nobody follows here
        it.directories.create("deleted", 0, uuid.uuid4(), it.configs.topic("deleted"))

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert server.partitions.get("t", 0) is not None
            assert server.partitions.get("deleted", 0) is None
            assert not (tmp_path / "deleted-0").exists()

    asyncio.run(scenario())


async def with_record(directory: Path) -> None:
    async with with_topic(directory) as server:
        await server.partitions.find("t", 0).append(
            encode_batch([Record(0, 0, None, b"value")]), acks=-1
        )


def test_log_with_records_that_older_metadata_do_not_know_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory was restored in part: nobody has deleted the topic."""
    with home(tmp_path / "older"):
        pass
    asyncio.run(with_record(tmp_path / "data"))
    shutil.rmtree(tmp_path / "data" / "__cluster_metadata-0")
    shutil.copytree(
        tmp_path / "older" / "__cluster_metadata-0", tmp_path / "data" / "__cluster_metadata-0"
    )

    async def scenario() -> None:
        async with serving(tmp_path / "data") as server:
            assert not [key for key in server.directories.logs if key[0] == "t"]

    asyncio.run(scenario())
    (kept,) = (tmp_path / "data").glob("t-0.*-stray")
    assert (kept / "00000000000000000000.log").stat().st_size > 0
    assert not list((tmp_path / "data").glob("t-1.*-stray")), "an empty one is deleted"
    assert "setting aside stray log t-0: not in the cluster metadata" in caplog.text
    assert "deleting stray log t-1: not in the cluster metadata" in caplog.text
    asyncio.run(scenario())


def test_log_of_a_topic_deleted_before_a_crash_is_deleted(tmp_path: Path) -> None:
    asyncio.run(with_record(tmp_path))
    with home(tmp_path) as it:
        asyncio.run(it.topics.delete([it.image.topics["t"].id]))  # no log is deleted here

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert not [key for key in server.directories.logs if key[0] == "t"]

    asyncio.run(scenario())
    assert not list(tmp_path.glob("t-0")) + list(tmp_path.glob("t-0.*-stray"))


def test_logs_older_than_the_metadata_are_created_again_where_missing(tmp_path: Path) -> None:
    asyncio.run(with_record(tmp_path))
    shutil.copytree(tmp_path / "t-0", tmp_path.parent / f"{tmp_path.name}-older")

    async def extended() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create_partitions([MorePartitions("t", 4)])

    async def restored() -> None:
        async with serving(tmp_path) as server:
            ends = [server.partitions.find("t", index).log.log_end_offset for index in range(4)]
            assert ends == [1, 0, 0, 0]

    asyncio.run(extended())
    for index in range(4):
        shutil.rmtree(tmp_path / f"t-{index}")
    shutil.copytree(tmp_path.parent / f"{tmp_path.name}-older", tmp_path / "t-0")
    asyncio.run(restored())


def test_log_of_an_earlier_topic_of_that_name_is_not_served(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        asyncio.run(it.topics.create([NewTopic("t", 1)]))
        it.directories.create("t", 0, uuid.uuid4(), it.configs.topic("t"))

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            log = server.directories.logs["t", 0]
            assert log.topic_id == server.metadata.image.topics["t"].id

    asyncio.run(scenario())


def hold_file_work(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Nothing is done to the files of logs in a thread before the event is set."""
    released = asyncio.Event()

    async def run_blocking(function: Callable[[], Any]) -> Any:
        await released.wait()
        return await server.tasks.run_blocking(function)

    monkeypatch.setattr(server._reconciler, "_run_blocking", run_blocking)
    return released


async def opened_completely(server: BrokerServer, count: int) -> None:
    while len(server.partitions) < count:
        await asyncio.sleep(0)


def test_partitions_are_opened_a_few_per_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 500)])
            opened = len(server.partitions)
            assert opened < 500, "the commit does not wait for them"
            while opened < 500:
                await asyncio.sleep(0)
                assert len(server.partitions) - opened <= PARTITIONS_PER_TURN
                opened = len(server.partitions)
            assert not list(tmp_path.glob("t-*"))

    asyncio.run(scenario())


def test_partition_that_is_needed_before_its_turn_is_opened_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            table = server.partitions
            topic = (await server.topics.create([NewTopic("t", 500)]))["t"]
            assert isinstance(topic, TopicImage)
            opened = len(table)
            assert all(table.is_online("t", index) for index in range(500))
            assert not table.is_online("t", 500)
            assert len(table) == opened, "nobody needs one to know that it is online"
            by_name, by_id = table.find("t", 499), table.find(topic.id, 498)
            assert (by_name.index, by_id.index) == (499, 498)
            assert len(table) == opened + 2
            assert table.get("t", 500) is None
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                table.find(topic.id, 500)
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_ID"):
                table.find(uuid.uuid4(), 0)
            await by_name.append(encode_batch([Record(0, 0, None, b"value")]), acks=-1)
            await opened_completely(server, 500)
            assert table.find("t", 499) is by_name
            assert by_name.high_watermark == 1

    asyncio.run(scenario())


def test_partitions_added_while_others_are_opened_are_opened_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 200)])
            await server.topics.create_partitions([MorePartitions("t", 300)])
            await opened_completely(server, 300)

    asyncio.run(scenario())


def test_topic_deleted_and_created_again_while_it_is_opened_has_the_new_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 200)])
            written = server.partitions.find("t", 150)
            await written.append(encode_batch([Record(0, 0, None, b"old")]), acks=-1)
            released = hold_file_work(server, monkeypatch)
            first_id = server.metadata.image.topics["t"].id
            deletion = asyncio.create_task(server.topics.delete([first_id]))
            while "t" in server.metadata.image.topics:
                await asyncio.sleep(0)
            creation = asyncio.create_task(server.topics.create([NewTopic("t", 180)]))
            while "t" not in server.metadata.image.topics:
                await asyncio.sleep(0)
            topic_id = server.metadata.image.topics["t"].id
            # While the old log is being removed, the name is taken; the answer waits for it.
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                server.partitions.find("t", 150)
            assert server.partitions.is_online("t", 150)
            assert not creation.done()
            released.set()
            await asyncio.gather(deletion, creation)
            await opened_completely(server, 180)
            logs = [log for key, log in server.directories.logs.items() if key[0] == "t"]
            assert len(logs) == 180
            assert {log.topic_id for log in logs} == {topic_id}
            partition = server.partitions.find(topic_id, 150)
            assert partition.log.log_end_offset == 0
            await partition.append(encode_batch([Record(0, 0, None, b"new")]), acks=-1)
            text = (tmp_path / "t-150" / "partition.metadata").read_text()
            assert encode_uuid(topic_id) in text

    asyncio.run(scenario())


def test_name_that_is_taken_again_while_another_is_freed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = encode_batch([Record(0, 0, None, b"value")])

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            topics, image = server.topics, lambda: server.metadata.image.topics
            await topics.create([NewTopic("a", 1)])
            await server.partitions.find("a", 0).append(record, acks=-1)
            released = hold_file_work(server, monkeypatch)
            works = [asyncio.create_task(topics.delete([image()["a"].id]))]
            while "a" in image():
                await asyncio.sleep(0)
            works.append(asyncio.create_task(topics.create([NewTopic("a", 1), NewTopic("b", 40)])))
            while "b" not in image():
                await asyncio.sleep(0)
            # a-0 waits for its name, and b-31 with it in the same turn; b-31 is used and deleted.
            await server.partitions.find("b", 31).append(record, acks=-1)
            works.append(asyncio.create_task(topics.delete([image()["b"].id])))
            while "b" in image():
                await asyncio.sleep(0)
            works.append(asyncio.create_task(topics.create([NewTopic("b", 40)])))
            while "b" not in image():
                await asyncio.sleep(0)
            released.set()
            await asyncio.gather(*works)
            await opened_completely(server, 41)
            assert all(server.partitions.is_online("b", index) for index in range(40))

    asyncio.run(scenario())


def test_deletion_of_many_partitions_fails_all_waiting_requests(tmp_path: Path) -> None:
    count = 3 * PARTITIONS_PER_TURN

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", count)])
            partitions = [server.partitions.find("t", index) for index in range(count)]
            notified: set[int] = set()

            class Watcher:
                def partition_changed(self, partition: Partition) -> None:
                    notified.add(partition.index)

            watcher = Watcher()
            for partition in partitions:
                partition.watch(watcher)
            await server.topics.delete([server.metadata.image.topics["t"].id])
            assert notified == set(range(count))
            for partition in partitions:
                assert partition.offline_error is not None
                assert partition.offline_error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


def test_deleted_partition_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            gc.collect()
            gc.disable()
            try:
                deleted = weakref.ref(server.partitions.find("t", 0))
                await server.topics.delete([server.metadata.image.topics["t"].id])
                assert deleted() is None
            finally:
                gc.enable()

    asyncio.run(scenario())


def test_topic_that_was_never_written_to_survives_a_kill(tmp_path: Path) -> None:
    """It is in the metadata, and has no directory."""

    async def killed() -> None:
        async with serving(tmp_path / "data") as server:
            await server.topics.create([NewTopic("t", 2)])
            await server.partitions.find("t", 1).append(
                encode_batch([Record(0, 0, None, b"value")]), acks=-1
            )
            shutil.copytree(tmp_path / "data", tmp_path / "killed")

    async def started_again() -> None:
        async with serving(tmp_path / "killed") as server:
            ends = [server.partitions.find("t", index).high_watermark for index in range(2)]
            assert ends == [0, 1]

    asyncio.run(killed())
    assert not (tmp_path / "killed" / "t-0").exists()
    asyncio.run(started_again())


@pytest.mark.parametrize("damage", ["empty", "cut", "gone"])
def test_log_whose_topic_id_is_torn_takes_that_of_the_metadata(tmp_path: Path, damage: str) -> None:
    async def create() -> uuid.UUID:
        async with with_topic(tmp_path) as server:
            return server.metadata.image.topics["t"].id

    async def is_found(topic_id: uuid.UUID) -> bool:
        async with serving(tmp_path) as server:
            return server.partitions.get_by_id(topic_id, 0) is not None

    topic_id = asyncio.run(create())
    path = tmp_path / "t-0" / "partition.metadata"
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else whole[:25])
    assert asyncio.run(is_found(topic_id))
    assert path.read_bytes() == whole
    assert asyncio.run(is_found(topic_id))


@pytest.mark.parametrize(("damage", "end"), [("torn", 0), ("gone", 1)])
def test_records_that_were_never_flushed_are_not_given_to_a_topic_of_that_name(
    tmp_path: Path, damage: str, end: int
) -> None:
    """They may be those of a deleted one. Without any file the log is older than topic ids."""
    asyncio.run(with_record(tmp_path))
    path = tmp_path / "t-0" / "partition.metadata"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:25])

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            log = server.directories.logs["t", 0]
            assert log.topic_id == server.metadata.image.topics["t"].id
            assert log.log_end_offset == end

    asyncio.run(scenario())
    assert len(list(tmp_path.glob("t-0.*-stray"))) == 1 - end


def test_log_of_a_topic_deleted_while_its_directory_was_offline_is_not_served(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    async def create() -> None:
        async with serving(one, log_dirs=f"{one},{two}") as server:
            await server.topics.create([NewTopic("t", 3)])
            assert {log.directory.path for log in server.directories.logs.values()} == {
                str(one),
                str(two),
            }

    async def recreate_in_one() -> None:
        async with serving(one) as server:
            await server.topics.delete([server.metadata.image.topics["t"].id])
            await server.topics.create([NewTopic("t", 3)])

    async def scenario() -> None:
        async with serving(one, log_dirs=f"{one},{two}") as server:
            logs = [log for key, log in server.directories.logs.items() if key[0] == "t"]
            assert {log.topic_id for log in logs} == {server.metadata.image.topics["t"].id}
            assert {log.directory.path for log in logs} == {str(one)}

    asyncio.run(create())
    asyncio.run(recreate_in_one())
    asyncio.run(scenario())
    assert not list(two.glob("t-?"))
    asyncio.run(scenario())


def test_creation_that_a_crash_cut_off_is_finished(tmp_path: Path) -> None:
    """Any part of the files may be there: a directory, an empty file."""

    async def create() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 4)])

    async def started_again() -> None:
        async with serving(tmp_path) as server:
            topic_id = server.metadata.image.topics["t"].id
            for index in range(4):
                partition = server.partitions.get_by_id(topic_id, index)
                assert partition is not None
                assert partition.log.log_end_offset == 0

    asyncio.run(create())
    for path in (tmp_path / "t-0", tmp_path / "t-1", tmp_path / "t-2"):
        shutil.rmtree(path)
    (tmp_path / "t-1").mkdir()
    (tmp_path / "t-2").mkdir()
    (tmp_path / "t-2" / "partition.metadata").touch()
    asyncio.run(started_again())
    asyncio.run(started_again())


def test_partition_without_a_working_directory_is_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            real_add = server.directories.add

            def add(new: NewLog) -> Log:
                if new.partition == 1:
                    raise DirectoryFailed("all log directories have failed")
                return real_add(new)

            server.directories.add = add  # type: ignore[method-assign]
            await server.topics.create([NewTopic("t", 3)])
            assert server.partitions.get("t", 1) is None
            assert not server.partitions.is_online("t", 1)
            assert "partition t-1 is offline: all log directories have failed" in caplog.text

    asyncio.run(scenario())


def test_topic_deleted_while_its_logs_are_made_leaves_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            creation = asyncio.create_task(server.topics.create([NewTopic("t", 500)]))
            while "t" not in server.metadata.image.topics:
                await asyncio.sleep(0)
            await server.topics.delete([server.metadata.image.topics["t"].id])
            await creation
            assert len(server.partitions) == 0
            assert not [key for key in server.directories.logs if key[0] == "t"]

    asyncio.run(scenario())


def test_logs_not_made_before_a_stop_are_made_at_the_next_start(tmp_path: Path) -> None:
    async def stopped_early() -> None:
        async with serving(tmp_path) as server:
            creation = asyncio.create_task(server.topics.create([NewTopic("t", 500)]))
            while "t" not in server.metadata.image.topics:
                await asyncio.sleep(0)
        with contextlib.suppress(asyncio.CancelledError):
            await creation

    async def started_again() -> None:
        async with serving(tmp_path) as server:
            assert len(server.partitions) == 500

    asyncio.run(stopped_early())
    asyncio.run(started_again())
