"""New logs: no files before the first append, no sync; topic ids supplied later, durably."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode, LogGone
from millstream.records.batch import iterate_headers
from millstream.storage import names
from millstream.storage.checkpoints import read_offsets, read_partition_metadata
from millstream.storage.creation import NewLog, new_log
from millstream.storage.directories import LogDirectories
from millstream.storage.log import Log
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.store import DATA, TOPIC, Store, make_batch, read_all, topic_id

ID, OTHER_ID = UUID(int=7), UUID(int=8)
CONFIG = TopicConfig()


def opened(fs: MemoryFileSystem, *paths: str) -> LogDirectories:
    return LogDirectories.open(paths or ["/data"], fs=fs)


def append(log: Log) -> None:
    batch = make_batch(b"first")
    log.append(batch, [it for _, it in iterate_headers(batch)], leader_epoch=0, now_ms=0)


def test_new_log_touches_no_file() -> None:
    fs = MemoryFileSystem()
    directories = opened(fs)
    before = len(fs.operations)
    log = new_log(directories.directories[0], NewLog("t", 0, ID, CONFIG), now_ms=0)
    assert log.read(0, max_bytes=100, end_offset=0) == b""
    assert fs.operations[before:] == []
    assert not fs.exists("/data/t-0")


def test_first_append_creates_the_files_without_a_sync() -> None:
    fs = MemoryFileSystem()
    directories = opened(fs)
    log = new_log(directories.directories[0], NewLog("t", 0, ID, CONFIG), now_ms=0)
    before = len(fs.operations)
    append(log)
    assert not [it for it in fs.operations[before:] if "sync" in it.name]
    assert set(fs.listdir("/data/t-0")) == {"partition.metadata", "00000000000000000000.log"}
    assert read_partition_metadata(fs, "/data/t-0") == ID


def test_files_of_a_cut_off_creation_are_taken_over() -> None:
    fs = MemoryFileSystem()
    directory = opened(fs).directories[0]
    for each in (OTHER_ID, ID):
        new_log(directory, NewLog("t", 0, each, CONFIG), now_ms=0).create_files(0)
    assert read_partition_metadata(fs, "/data/t-0") == ID


def test_append_that_finds_the_disk_full_leaves_the_log_to_the_next_one() -> None:
    store = Store()
    log = store.log()
    store.fs.fail_writes_after(0)
    with pytest.raises(ApiError) as raised:
        store.append(b"refused")
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.directory.failure is None
    store.fs.fail_writes_after(None)
    store.append(b"accepted")
    assert [record.value for record in read_all(log)] == [b"accepted"]


def test_append_that_finds_the_disk_broken_fails_the_directory() -> None:
    store = Store()
    log = store.log()
    store.fs.fail_everything_under(f"{DATA}/{TOPIC}-0")
    with pytest.raises(ApiError):
        store.append(b"refused")
    assert isinstance(log.directory.failure, OSError)
    assert log.directory.failure.errno == errno.EIO


def test_flushed_first_append_survives_a_power_cut() -> None:
    store = Store()
    store.append(b"acknowledged")
    assert not store.flush(0)
    store.crash()
    assert [record.value for record in read_all(store.log())] == [b"acknowledged"]
    assert store.log().topic_id == topic_id()


def test_checkpoint_leaves_out_a_log_without_files() -> None:
    """Else the next start would take its entries for those of a deleted log."""
    store = Store()
    store.log(0)
    store.append(b"first", partition=1)
    store.flush(1)
    store.directories.checkpoint({(TOPIC, 0): 0, (TOPIC, 1): 1})
    for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS):
        assert read_offsets(store.fs, f"{DATA}/{name}").keys() == {(TOPIC, 1)}
    store.kill()
    assert (TOPIC, 0) not in store.directories.logs
    assert store.directories.is_free(TOPIC, 0)


def test_log_without_files_is_deleted_without_the_disk() -> None:
    store = Store()
    log = store.log()
    before = len(store.fs.operations)
    store.directories.delete(TOPIC, 0)
    assert not [it for it in store.fs.operations[before:] if "sync" in it.name]
    with pytest.raises(LogGone):
        append(log)
    assert not store.fs.exists(log.path)
    store.append(b"new")
    assert [record.value for record in read_all(store.log())] == [b"new"]


def test_clean_stop_leaves_a_directory_for_every_log() -> None:
    store = Store()
    store.log(0)
    store.append(b"first", partition=1)
    store.restart()
    assert store.directories.clean
    ends = {name: log.log_end_offset for name, log in store.directories.logs.items()}
    assert ends == {(TOPIC, 0): 0, (TOPIC, 1): 1}
    assert store.directories.logs[TOPIC, 0].topic_id == topic_id()


def test_stop_with_a_full_disk_is_clean_without_the_files() -> None:
    store = Store()
    store.append(b"first", partition=1)
    store.flush(1)
    store.log(0)
    make_directory = store.fs.make_directory
    store.fs.make_directory = full  # type: ignore[method-assign]
    store.directories.close()
    store.fs.make_directory = make_directory  # type: ignore[method-assign]
    store.reopen()
    assert store.directories.clean
    assert store.directories.logs.keys() == {(TOPIC, 1)}
    assert store.directories.is_free(TOPIC, 0)


def full(path: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_new_logs_are_spread_over_the_directories() -> None:
    directories = opened(MemoryFileSystem(), "/a", "/b")
    for index in range(6):
        directories.add(NewLog("t", index, ID, CONFIG))
    assert [it.log_count for it in directories.directories] == [3, 3]
    assert sorted(directories.logs) == [("t", index) for index in range(6)]


def test_topic_id_is_supplied_durably() -> None:
    fs = MemoryFileSystem()
    directories = opened(fs)
    directories.create("t", 0, ID, CONFIG)
    directories.close()
    fs.unlink("/data/t-0/partition.metadata")
    directories = opened(fs)
    log = directories.logs["t", 0]
    assert log.topic_id is None
    directories.adopt({log: ID})
    assert log.topic_id == ID
    assert log.log_id == (ID.bytes, 0)
    directories.abandon()
    fs.crash()
    assert opened(fs).logs["t", 0].topic_id == ID


def test_directory_that_has_failed_gets_no_logs() -> None:
    directories = opened(MemoryFileSystem(), "/a", "/b")
    directories.directories[0].fail(OSError(5, "Input/output error"))
    directories.add(NewLog("t", 0, ID, CONFIG))
    assert directories.logs["t", 0].directory is directories.directories[1]
    directories.directories[1].fail(OSError(5, "Input/output error"))
    with pytest.raises(Exception, match="all log directories have failed"):
        directories.add(NewLog("t", 1, ID, CONFIG))


def test_topic_id_whose_sync_failed_is_not_trusted_after_a_kill() -> None:
    """The page cache has it, the disk has not: a power cut would take it, and the records' topic
    with it. So nobody may see these records even now."""
    store = Store()
    store.fs.fail_next_sync("partition.metadata")
    store.append(b"never acknowledged")
    assert store.flush(0)
    store.kill()
    assert store.directories.logs[TOPIC, 0].topic_id is None
    assert store.directories.has_torn_id(store.directories.logs[TOPIC, 0])
