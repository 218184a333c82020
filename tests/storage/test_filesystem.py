"""The real filesystem, and the helpers on top of any."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.errors import NotCached
from millstream.records.batch import Buffer
from millstream.storage import filesystem
from millstream.storage.filesystem import (
    ZEROED_BYTES_MAX,
    OsFileSystem,
    SyncBatch,
    read_file,
    replace_file,
    write_file,
    write_fully,
)
from millstream.testing.filesystem import MemoryFileSystem


@pytest.fixture
def fs() -> OsFileSystem:
    return OsFileSystem()


def test_cached_bytes_are_read_without_waiting(fs: OsFileSystem, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    write_file(fs, path, b"hello world", sync=True)
    fd = fs.open(path)
    assert fs.pread_cached(fd, 5, 6) == b"world"
    fs.close(fd)


@pytest.mark.parametrize("size", [ZEROED_BYTES_MAX, ZEROED_BYTES_MAX + 1, 1 << 20])
def test_large_reads_are_whole_or_refused(fs: OsFileSystem, tmp_path: Path, size: int) -> None:
    """Their memory is not zeroed first: nothing of it may be left."""
    path, content = str(tmp_path / "file"), os.urandom(size)
    write_file(fs, path, content, sync=True)
    fd = fs.open(path)
    assert fs.pread_cached(fd, size, 0) == content
    with pytest.raises(NotCached, match=f"{size - 1} of {size}"):
        fs.pread_cached(fd, size, 1)
    fs.close(fd)


def test_read_past_the_end_is_not_cached(fs: OsFileSystem, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    write_file(fs, path, b"hello", sync=True)
    fd = fs.open(path)
    with pytest.raises(NotCached, match="5 of 9"):
        fs.pread_cached(fd, 9, 0)
    fs.close(fd)


def test_filesystem_that_cannot_say_what_is_cached_is_read_anyway(
    fs: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    write_file(fs, path, b"hello", sync=True)
    fd = fs.open(path)
    real = os.preadv

    def refuse_flags(fd: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", refuse_flags)
    assert fs.pread_cached(fd, 5, 0) == b"hello"
    fs.close(fd)


def test_lock_is_refused_to_another_process(fs: OsFileSystem, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    fd = fs.lock(path)
    program = (
        "import sys; from millstream.storage.filesystem import OsFileSystem\n"
        "try: OsFileSystem().lock(sys.argv[1])\n"
        "except BlockingIOError: sys.exit(7)\n"
    )
    command = [sys.executable, "-c", program, path]
    assert subprocess.run(command, check=False).returncode == 7
    fs.close(fd)
    assert subprocess.run(command, check=False).returncode == 0


def test_lock_is_refused_to_the_same_process(fs: OsFileSystem, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    fd = fs.lock(path)
    with pytest.raises(BlockingIOError):
        fs.lock(path)
    fs.close(fd)


@pytest.mark.parametrize("count", [2, filesystem.SYNCED_ONE_BY_ONE_MAX + 1])
def test_sync_all_takes_files_and_directories(fs: OsFileSystem, tmp_path: Path, count: int) -> None:
    paths = [str(tmp_path / str(number)) for number in range(count - 1)]
    for path in paths:
        write_file(fs, path, b"x", sync=False)
    whole = fs.sync_all(str(tmp_path), [*paths, str(tmp_path)])
    assert whole == (count > filesystem.SYNCED_ONE_BY_ONE_MAX and sys.platform == "linux")


def test_names_are_listed_renamed_and_removed(fs: OsFileSystem, tmp_path: Path) -> None:
    directory = str(tmp_path / "a" / "b")
    fs.make_directory(directory)
    fs.make_directory(directory)
    write_file(fs, f"{directory}/one", b"1234", sync=True)
    fs.rename(f"{directory}/one", f"{directory}/two")
    fs.sync_directory(directory)
    assert fs.listdir(directory) == ["two"]
    assert fs.file_size(f"{directory}/two") == 4
    assert fs.modified_ms(f"{directory}/two") > 0
    assert fs.is_directory(directory)
    fs.remove_tree(str(tmp_path / "a"))
    assert not fs.exists(directory)


class StingyFileSystem(MemoryFileSystem):
    """Takes three bytes at a time, as a kernel may."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return super().pwritev(fd, [b"".join(buffers)[:3]], position)


def test_short_writes_are_continued() -> None:
    fs = StingyFileSystem()
    fs.make_directory("/data")
    fd = fs.open("/data/file", create=True)
    assert write_fully(fs, fd, [b"hello ", b"world"], 2) == 13
    assert read_file(fs, "/data/file") == b"\0\0hello world"


def test_replaced_file_is_old_or_new_after_a_crash() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    replace_file(fs, "/data/file", b"old")
    fs.fail_next_sync("file.tmp")
    with pytest.raises(OSError, match="Input/output"):
        replace_file(fs, "/data/file", b"new")
    fs.crash()
    assert read_file(fs, "/data/file") == b"old"
    replace_file(fs, "/data/file", b"new")
    fs.crash()
    assert read_file(fs, "/data/file") == b"new"


def test_batch_is_durable_after_commit_and_not_before() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    replace_file(fs, "/data/kept", b"old")
    batch = SyncBatch(fs, "/data")
    batch.write("/data/written", b"w")
    batch.replace("/data/kept", b"new")
    fs.crash()
    assert read_file(fs, "/data/kept") == b"old"
    assert not fs.exists("/data/written")
    batch.write("/data/written", b"w")
    batch.replace("/data/kept", b"new")
    batch.commit()
    fs.crash()
    assert (read_file(fs, "/data/kept"), read_file(fs, "/data/written")) == (b"new", b"w")
