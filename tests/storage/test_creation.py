"""New logs: files first, without a sync; topic ids supplied later, durably."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.config.topic import TopicConfig
from millstream.storage.checkpoints import read_partition_metadata
from millstream.storage.creation import NewLog, make_log
from millstream.storage.directories import LogDirectories
from millstream.storage.steps import run_here
from millstream.testing.filesystem import MemoryFileSystem

ID, OTHER_ID = UUID(int=7), UUID(int=8)
CONFIG = TopicConfig()


def opened(fs: MemoryFileSystem, *paths: str) -> LogDirectories:
    return LogDirectories.open(paths or ["/data"], fs=fs)


def test_creation_syncs_nothing() -> None:
    fs = MemoryFileSystem()
    directories = opened(fs)
    before = len(fs.operations)
    make_log(directories.directories[0], NewLog("t", 0, ID, CONFIG), now_ms=0)
    assert not [it for it in fs.operations[before:] if "sync" in it.name]
    assert set(fs.listdir("/data/t-0")) == {"partition.metadata", "00000000000000000000.log"}


def test_files_of_a_cut_off_creation_are_taken_over() -> None:
    fs = MemoryFileSystem()
    directory = opened(fs).directories[0]
    make_log(directory, NewLog("t", 0, OTHER_ID, CONFIG), now_ms=0)
    make_log(directory, NewLog("t", 0, ID, CONFIG), now_ms=0)
    assert read_partition_metadata(fs, "/data/t-0") == ID


def test_new_logs_are_spread_over_the_directories() -> None:
    directories = opened(MemoryFileSystem(), "/a", "/b")
    wanted = [NewLog("t", index, ID, CONFIG) for index in range(6)]
    run_here(directories.create_steps(wanted))
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
    run_here(directories.create_steps([NewLog("t", 0, ID, CONFIG)]))
    assert directories.logs["t", 0].directory is directories.directories[1]
    directories.directories[1].fail(OSError(5, "Input/output error"))
    with pytest.raises(Exception, match="all log directories have failed"):
        run_here(directories.create_steps([NewLog("t", 1, ID, CONFIG)]))
