"""Open files, bounded.

A broker may own many thousands of segments and may open far fewer files. Every file of the log is
reached through a `FileHandle`, which is open or not; `FileHandles` opens it on first use and closes
the ones longest unused (second chance: a handle used since the last sweep survives it).

Threads. The owner's thread uses `handle.fd` directly, without a lock: only that thread evicts, so
nothing can close the file between its look and its system call. Any other thread borrows the
handle, which pins it. The handle of a removed file is discarded: it is closed when the last
borrower returns it, so that reads of a deleted segment can finish, and it is never opened again:
that raises `FileGone`, because the path may belong to a file of another log by then.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import FileGone
from millstream.storage._core import FileHandle
from millstream.storage.filesystem import FileSystem

CLOSED = -1

OPEN_FILES_MIN, OPEN_FILES_MAX = 64, 16_384


def default_open_files_max() -> int:
    """Half of what the process may open: the rest is for connections."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(soft_limit // 2, OPEN_FILES_MIN), OPEN_FILES_MAX)


class FileHandles:
    """All open files of one process' logs."""

    def __init__(self, fs: FileSystem, *, open_files_max: int | None = None) -> None:
        self.fs = fs
        self._open_files_max = open_files_max or default_open_files_max()
        self.lock = threading.Lock()
        self._open: dict[FileHandle, None] = {}

    def owner_fd(self, handle: FileHandle) -> int:
        """The open file, for the owner's thread only, until it next opens another.

        Raises `FileGone` if the handle was discarded, as does `borrow`.
        """
        handle.used = True
        fd = handle.fd
        if fd >= 0:
            return fd
        with self.lock:
            fd = self._open_locked(handle)
            self._evict_locked(keep=handle)
        return fd

    @contextmanager
    def borrowed(self, handle: FileHandle) -> Iterator[int]:
        """The open file, on any thread, until the block ends."""
        fd = self.borrow(handle)
        try:
            yield fd
        finally:
            self.give_back(handle)

    def borrow(self, handle: FileHandle) -> int:
        with self.lock:
            fd = self._open_locked(handle)
            handle.pins += 1
            handle.used = True
        return fd

    def give_back(self, handle: FileHandle) -> None:
        with self.lock:
            handle.pins -= 1
            if handle.discarded and handle.pins == 0:
                self._close_locked(handle)

    def release(self, handle: FileHandle) -> None:
        """Close the file for now, unless somebody is reading it; the next use opens it again."""
        with self.lock:
            if handle.pins == 0:
                self._close_locked(handle)

    def discard(self, handle: FileHandle) -> None:
        """The file was deleted or is no longer needed: close it as soon as it has no readers."""
        with self.lock:
            handle.discarded = True
            if handle.pins == 0:
                self._close_locked(handle)

    def rename(self, handle: FileHandle, path: str) -> None:
        """Rename the file; it can be opened through the handle at any time."""
        with self.lock:
            if handle.discarded:
                raise FileGone(f"{handle.path} was removed")
            if self.fs.exists(handle.path):  # not every segment has every index
                self.fs.rename(handle.path, path)
            handle.path = path

    def _open_locked(self, handle: FileHandle) -> int:
        if handle.fd < 0:
            if handle.discarded:
                raise FileGone(f"{handle.path} was removed")
            handle.fd = self.fs.open(handle.path)
            self._open[handle] = None
        return handle.fd

    def _close_locked(self, handle: FileHandle) -> None:
        if handle.fd >= 0:
            del self._open[handle]
            fd, handle.fd = handle.fd, CLOSED
            self.fs.close(fd)

    def _evict_locked(self, keep: FileHandle) -> None:
        """Two rounds at most: the first takes the second chances away, the second closes."""
        for _ in range(2 * len(self._open)):
            if len(self._open) <= self._open_files_max:
                return
            oldest = next(iter(self._open))
            if oldest is keep or oldest.pins or oldest.used:
                oldest.used = False
                self._open[oldest] = self._open.pop(oldest)
            else:
                self._close_locked(oldest)
