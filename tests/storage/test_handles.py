"""Open files: bounded, and never closed under a reader."""

from __future__ import annotations

import resource
import threading

import pytest

from millstream.storage.handles import (
    CLOSED,
    OPEN_FILES_MIN,
    FileHandle,
    FileHandles,
    default_open_files_max,
)
from millstream.testing.filesystem import MemoryFileSystem


def make_handles(count: int, open_files_max: int) -> tuple[FileHandles, list[FileHandle]]:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    for number in range(count):
        fs.close(fs.open(f"/data/{number}", create=True))
    handles = FileHandles(fs, open_files_max=open_files_max)
    return handles, [FileHandle(f"/data/{number}") for number in range(count)]


def test_open_files_stay_within_the_limit() -> None:
    handles, files = make_handles(20, open_files_max=4)
    for file in files * 3:
        assert handles.owner_fd(file) >= 0
        assert sum(other.fd >= 0 for other in files) <= 4


def test_file_used_again_gets_a_second_chance() -> None:
    handles, files = make_handles(5, open_files_max=3)
    for file in files[:4]:
        handles.owner_fd(file)  # the fourth takes the others' marks away and closes the first
    handles.owner_fd(files[1])
    handles.owner_fd(files[4])
    assert files[1].fd >= 0
    assert files[2].fd == CLOSED


def test_closed_file_is_opened_again() -> None:
    handles, (file, other) = make_handles(2, open_files_max=1)
    handles.fs.pwritev(handles.owner_fd(file), [b"hello"], 0)
    handles.owner_fd(other)
    assert file.fd == CLOSED
    assert handles.fs.pread(handles.owner_fd(file), 5, 0) == b"hello"


def test_borrowed_file_is_not_evicted() -> None:
    handles, files = make_handles(5, open_files_max=2)
    with handles.borrowed(files[0]) as fd:
        for file in files[1:]:
            handles.owner_fd(file)
        assert files[0].fd == fd
        handles.fs.pread(fd, 1, 0)


def test_discarded_file_stays_open_for_its_readers_and_no_longer() -> None:
    handles, (file,) = make_handles(1, open_files_max=2)
    with handles.borrowed(file) as fd:
        handles.discard(file)
        handles.fs.unlink(file.path)
        handles.fs.pread(fd, 1, 0)
    assert file.fd == CLOSED
    with pytest.raises(OSError, match="Bad file descriptor"):
        handles.fs.pread(fd, 1, 0)


def test_released_file_can_be_used_again() -> None:
    handles, (file,) = make_handles(1, open_files_max=2)
    handles.owner_fd(file)
    handles.release(file)
    assert file.fd == CLOSED
    assert handles.owner_fd(file) >= 0


def test_renamed_file_is_found_under_its_new_name() -> None:
    handles, (file,) = make_handles(1, open_files_max=2)
    handles.rename(file, "/data/renamed")
    assert handles.owner_fd(file) >= 0
    assert handles.fs.exists("/data/renamed")


def test_renaming_a_file_that_is_not_there_changes_only_the_name() -> None:
    handles, _ = make_handles(0, open_files_max=2)
    file = FileHandle("/data/absent")
    handles.rename(file, "/data/renamed")
    assert file.path == "/data/renamed"
    assert not handles.fs.exists("/data/renamed")


def test_readers_in_threads_never_meet_a_closed_file() -> None:
    """Four threads borrow while the owner opens and evicts; a race would read another file."""
    handles, files = make_handles(12, open_files_max=3)
    for number, file in enumerate(files):
        handles.fs.pwritev(handles.owner_fd(file), [bytes([number])], 0)
    failures: list[object] = []

    def read() -> None:
        for _ in range(300):
            for number, file in enumerate(files):
                with handles.borrowed(file) as fd:
                    content = handles.fs.pread(fd, 1, 0)
                if content != bytes([number]):
                    failures.append((number, content))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for file in files:
            handles.owner_fd(file)
    assert failures == []


def test_default_limit_leaves_room_for_connections() -> None:
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert OPEN_FILES_MIN <= default_open_files_max() <= max(soft_limit // 2, OPEN_FILES_MIN)
