"""The faults must be as announced: every proof about storage rests on them."""

from __future__ import annotations

from random import Random

import pytest

from millstream.errors import NotCached
from millstream.storage.filesystem import read_file, write_file
from millstream.testing.filesystem import MemoryFileSystem

PATH = "/data/file"


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    return fs


def write(fs: MemoryFileSystem, data: bytes, position: int = 0, *, sync: bool = False) -> None:
    fd = fs.open(PATH, create=True)
    fs.pwritev(fd, [data], position)
    if sync:
        fs.fdatasync(fd)
        fs.sync_directory("/data")
    fs.close(fd)


def test_crash_forgets_bytes_that_were_not_synced(fs: MemoryFileSystem) -> None:
    write(fs, b"kept", sync=True)
    write(fs, b" lost", 4)
    assert read_file(fs, PATH) == b"kept lost"
    fs.crash()
    assert read_file(fs, PATH) == b"kept"


def test_crash_forgets_a_file_whose_directory_was_not_synced(fs: MemoryFileSystem) -> None:
    write_file(fs, PATH, b"synced", sync=True)
    fs.crash()
    assert not fs.exists(PATH)


def test_crash_undoes_a_rename_and_an_unlink_that_were_not_synced(fs: MemoryFileSystem) -> None:
    write(fs, b"content", sync=True)
    fs.rename(PATH, "/data/renamed")
    fs.crash()
    assert fs.listdir("/data") == ["file"]
    fs.unlink(PATH)
    fs.crash()
    assert read_file(fs, PATH) == b"content"


def test_crash_closes_files_and_releases_locks(fs: MemoryFileSystem) -> None:
    fd = fs.lock("/data/.lock")
    with pytest.raises(BlockingIOError):
        fs.lock("/data/.lock")
    fs.crash()
    with pytest.raises(OSError, match="Bad file"):
        fs.pread(fd, 1, 0)
    fs.lock("/data/.lock")


def test_crash_with_chance_keeps_some_writes_and_tears_the_last(fs: MemoryFileSystem) -> None:
    outcomes = set()
    for seed in range(200):
        disk = MemoryFileSystem()
        disk.make_directory("/data")
        write(disk, b"AA", sync=True)
        write(disk, b"BB", 2)
        write(disk, b"CC", 4)
        disk.crash(Random(seed))
        outcomes.add(read_file(disk, PATH))
    assert {b"AA", b"AABB", b"AABBC", b"AABBCC", b"AA\0\0CC"} <= outcomes
    assert all(outcome.startswith(b"AA") for outcome in outcomes)


def test_failed_sync_reports_success_afterwards_and_the_bytes_are_lost(
    fs: MemoryFileSystem,
) -> None:
    write(fs, b"kept", sync=True)
    fd = fs.open(PATH)
    fs.pwritev(fd, [b" lost"], 4)
    fs.fail_next_sync("file")
    with pytest.raises(OSError, match="Input/output"):
        fs.fdatasync(fd)
    fs.fdatasync(fd)
    assert read_file(fs, PATH) == b"kept lost"
    fs.crash()
    assert read_file(fs, PATH) == b"kept"


def test_dropping_the_cache_shows_what_the_disk_has(fs: MemoryFileSystem) -> None:
    write(fs, b"kept", sync=True)
    fd = fs.open(PATH)
    fs.pwritev(fd, [b" lost"], 4)
    fs.fail_next_sync("file")
    with pytest.raises(OSError, match="Input/output"):
        fs.fdatasync(fd)
    fs.pwritev(fd, [b"K"], 0)
    fs.drop_cache(fd)
    assert fs.pread(fd, 99, 0) == b"Kept"


def test_full_disk_cuts_a_write_short_and_refuses_the_next(fs: MemoryFileSystem) -> None:
    fd = fs.open(PATH, create=True)
    fs.fail_writes_after(3)
    assert fs.pwritev(fd, [b"hello"], 0) == 3
    with pytest.raises(OSError, match="No space"):
        fs.pwritev(fd, [b"lo"], 3)
    fs.heal()
    assert fs.pwritev(fd, [b"lo"], 3) == 2
    assert read_file(fs, PATH) == b"hello"


def test_failing_path_takes_nothing_else_down(fs: MemoryFileSystem) -> None:
    fs.make_directory("/other")
    write(fs, b"x")
    fs.fail_everything_under("/data")
    with pytest.raises(OSError, match="Input/output"):
        fs.open(PATH)
    write_file(fs, "/other/file", b"y", sync=True)


def test_evicted_file_is_not_cached_until_it_is_read_with_waiting(fs: MemoryFileSystem) -> None:
    write(fs, b"hello")
    fd = fs.open(PATH)
    fs.evict("file")
    with pytest.raises(NotCached):
        fs.pread_cached(fd, 5, 0)
    fs.pread(fd, 1, 0)
    assert fs.pread_cached(fd, 5, 0) == b"hello"


def test_flipped_byte_stays_flipped_after_a_crash(fs: MemoryFileSystem) -> None:
    write(fs, b"hello", sync=True)
    fs.flip(PATH, 1, mask=0x20)
    fs.crash()
    assert read_file(fs, PATH) == b"hEllo"


def test_operations_are_noted_in_order(fs: MemoryFileSystem) -> None:
    write(fs, b"hello", sync=True)
    assert [operation.name for operation in fs.operations] == [
        "create",
        "write",
        "fdatasync",
        "sync_directory",
    ]


def test_renamed_directory_takes_its_files_along(fs: MemoryFileSystem) -> None:
    write(fs, b"synced", sync=True)
    write_file(fs, "/data/unsynced", b"u", sync=False)
    fs.rename("/data", "/moved")
    assert sorted(fs.listdir("/moved")) == ["file", "unsynced"]
    fs.crash()
    assert fs.listdir("/moved") == ["file"]
    fs.remove_tree("/moved")
    assert not fs.exists("/moved/file")
