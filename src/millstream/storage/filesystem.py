"""The filesystem as an argument.

The log never calls `os` itself: it is handed a `FileSystem`, so that a test can own the disk
(`millstream.testing.MemoryFileSystem`: full disks, failing syncs, power cuts). The methods are
`os`'s own, with whole-file helpers on top; files are plain integers, so that the real one costs
nothing: `OsFileSystem.pwritev` *is* `os.pwritev`.

What is durable, and when:

- bytes written to a file: when `fdatasync` of that file has returned;
- a file's name (created, renamed, removed): when `sync_directory` of its directory has returned;
- after an `fdatasync` that failed: nothing. Linux reports the failure once, marks the lost pages
  clean, and reports success from then on. After a failure, never trust that file again,
  nor what the page cache says of it: `drop_cache` makes the next read ask the disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from millstream.errors import NotCached
from millstream.records.batch import Buffer
from millstream.storage import page_cache

SYNCED_ONE_BY_ONE_MAX = 8

if sys.platform == "linux":
    _NOWAIT = os.RWF_NOWAIT
else:
    # Elsewhere the kernel cannot be asked: reads are made as if everything were cached.
    _NOWAIT = 0


def _find_syncfs() -> Callable[[int], int] | None:
    """Linux reports write errors from syncfs since 5.8; before that it cannot be trusted."""
    if sys.platform != "linux":
        return None
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release < (5, 8):
        return None
    function: Callable[[int], int] | None = getattr(
        ctypes.CDLL(None, use_errno=True), "syncfs", None
    )
    return function


_syncfs = _find_syncfs()

# `bytearray(size)` fills its memory with zeros, a quarter to a third of the cost of a large read.
# This leaves it as it is, so it is only for what is overwritten whole; small ones it makes slower.
_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
ZEROED_BYTES_MAX = 32 * 1024


class FileSystem(Protocol):
    """What the log needs of a disk. Paths are absolute strings, files are integers."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; FileNotFoundError unless it exists or `create`."""
        ...

    def close(self, fd: int) -> None: ...

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other at `position`; may write less: returns how much."""
        ...

    def pread(self, fd: int, size: int, position: int) -> bytes: ...

    def pread_cached(self, fd: int, size: int, position: int) -> bytearray:
        """Like `pread`, but raises `NotCached` rather than wait for the disk."""
        ...

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        """Whether a read would not wait for the disk; False if that is not known."""
        ...

    def sendfile(self, socket_fd: int, fd: int, position: int, size: int) -> int:
        """Send bytes of a file to a socket; may send less: returns how much. May wait for the disk
        unless they are cached."""
        ...

    def size(self, fd: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def fdatasync(self, fd: int) -> None: ...

    def drop_cache(self, fd: int) -> None:
        """Forget cached content that is not waiting to be written: the next read asks the disk."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def sync_each(self, paths: Iterable[str]) -> None:
        """Make files (their bytes) and directories (their names) durable, one by one.

        Those that are gone are left out.
        """
        ...

    def sync_all(self, root: str, paths: Collection[str]) -> bool:
        """Like `sync_each`, for paths below `root`, but cheaper if there are many: the whole
        filesystem may be synced instead; then it returns True. Not where a request waits."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]: ...

    def make_directory(self, path: str) -> None:
        """Create it and its parents; no error if it exists."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def lock(self, path: str) -> int:
        """Create and lock a file; BlockingIOError if another process holds it. Close to release."""
        ...


class OsFileSystem:
    """The machine's own."""

    close = staticmethod(os.close)
    pwritev = staticmethod(os.pwritev)
    pread = staticmethod(os.pread)
    truncate = staticmethod(os.ftruncate)
    exists = staticmethod(os.path.exists)
    is_directory = staticmethod(os.path.isdir)
    listdir = staticmethod(os.listdir)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    remove_tree = staticmethod(shutil.rmtree)

    def __init__(self) -> None:
        self._read_flags = _NOWAIT

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT if create else flags, 0o644)

    def pread_cached(self, fd: int, size: int, position: int) -> bytearray:
        zeroed = size <= ZEROED_BYTES_MAX
        buffer: bytearray = bytearray(size) if zeroed else _new_bytearray(None, size)
        try:
            count = os.preadv(fd, (buffer,), position, self._read_flags)
        except BlockingIOError:
            raise NotCached(f"{size} bytes at {position} are not in memory") from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not self._read_flags:
                raise
            self._read_flags = 0  # this filesystem cannot say what is cached
            return self.pread_cached(fd, size, position)
        if count < size:
            raise NotCached(f"only {count} of {size} bytes at {position} are in memory")
        return buffer

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        return page_cache.is_cached(fd, size, position)

    sendfile = staticmethod(os.sendfile)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    if sys.platform == "darwin":

        def fdatasync(self, fd: int) -> None:
            # fsync leaves the bytes in the drive's own cache there; only this one empties it.
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    else:
        fdatasync = staticmethod(os.fdatasync)

    def drop_cache(self, fd: int) -> None:
        if sys.platform == "linux":
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_each(self, paths: Iterable[str]) -> None:
        for path in paths:
            _sync(path)

    def sync_all(self, root: str, paths: Collection[str]) -> bool:
        if len(paths) > SYNCED_ONE_BY_ONE_MAX and _syncfs is not None:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if _syncfs(fd) != 0:
                    raise OSError(ctypes.get_errno(), f"syncfs failed in {root}")
            finally:
                os.close(fd)
            return True
        for path in paths:
            _sync(path)
        return False

    def file_size(self, path: str) -> int:
        return Path(path).stat().st_size

    def modified_ms(self, path: str) -> int:
        return Path(path).stat().st_mtime_ns // 1_000_000

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)  # noqa: PTH102 - half the time of Path's, and there may be thousands
        except FileExistsError:
            if not self.is_directory(path):
                raise
        except FileNotFoundError:
            Path(path).mkdir(parents=True, exist_ok=True)

    def lock(self, path: str) -> int:
        fd = self.open(path, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Kafka (Java) takes a POSIX lock, which flock does not see: hold both kinds.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise BlockingIOError(error.errno, "locked by another process", path) from None
        return fd


def _sync(path: str) -> None:
    try:
        # For reading: a directory cannot be opened otherwise.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_fully(fs: FileSystem, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write every byte or raise; returns the position after the last one."""
    written = fs.pwritev(fd, buffers, position)
    total = sum(map(len, buffers))
    while written < total:
        # The kernel took a part: a signal, or the disk is about to say that it is full.
        rest = memoryview(b"".join(buffers))[written:]
        count = fs.pwritev(fd, (rest,), position + written)
        if count == 0:
            raise OSError(errno.ENOSPC, f"wrote {written} of {total} bytes")
        written += count
    return position + total


def read_file(fs: FileSystem, path: str, *, may_block: bool = True) -> bytes:
    """The whole file. Raises `NotCached` rather than wait for the disk unless it `may_block`."""
    fd = fs.open(path)
    try:
        size = fs.size(fd)
        return fs.pread(fd, size, 0) if may_block else bytes(fs.pread_cached(fd, size, 0))
    finally:
        fs.close(fd)


def write_file(fs: FileSystem, path: str, content: Buffer, *, sync: bool) -> None:
    """Create or overwrite in place; a crash may leave a part of it."""
    fd = fs.open(path, create=True)
    try:
        write_fully(fs, fd, (content,), 0)
        fs.truncate(fd, len(content))
        if sync:
            fs.fdatasync(fd)
    finally:
        fs.close(fd)


class SyncBatch:
    """Files to be written and replaced together, so that all of them become durable at once.

    Collected on one thread, committed on any: nothing is written before `commit`. That writes,
    syncs what was written, renames what replaces another file, and syncs the directories. A crash
    before its end leaves, for each file that was to be replaced, the old content or the new. Files
    whose directory has gone meanwhile are left out.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._writes: list[tuple[str, Buffer]] = []
        self._files: dict[str, None] = {}
        self._renames: dict[str, str] = {}
        self._directories: dict[str, None] = {}

    def write(self, path: str, content: Buffer) -> None:
        """A file that begins with `content`: more may follow there already."""
        self._writes.append((path, content))
        self.add_directory(str(Path(path).parent))

    def replace(self, path: str, content: Buffer) -> None:
        """Old content or new, nothing between."""
        self._writes.append((path + ".tmp", content))
        self._renames[path + ".tmp"] = path
        self.add_directory(str(Path(path).parent))

    def add_file(self, path: str) -> None:
        """A file written by somebody else."""
        self._files[path] = None

    def add_directory(self, path: str) -> None:
        """A directory in which somebody else created or removed a name."""
        self._directories[path] = None

    @property
    def directories(self) -> set[str]:
        """Those in which something is written or synced."""
        paths = (*(path for path, _ in self._writes), *self._files)
        return {path.rpartition("/")[0] for path in paths} | self._directories.keys()

    def leave_out(self, directories: Collection[str]) -> None:
        """Do nothing in these directories."""
        self._writes = [
            write for write in self._writes if write[0].rpartition("/")[0] not in directories
        ]
        self._files = {
            path: None for path in self._files if path.rpartition("/")[0] not in directories
        }
        self._directories = {path: None for path in self._directories if path not in directories}

    def commit(self) -> None:
        """Blocks until all of it is durable."""
        for path, content in self._writes:
            if self._write(path, content):
                self._files[path] = None
        if self._files:
            self._fs.sync_all(self._root, self._files)
        for temporary, path in self._renames.items():
            if temporary in self._files:
                with suppress(FileNotFoundError):
                    self._fs.rename(temporary, path)
        if self._directories:
            self._fs.sync_all(self._root, self._directories)

    def _write(self, path: str, content: Buffer) -> bool:
        try:
            fd = self._fs.open(path, create=True)
        except FileNotFoundError:
            return False  # the directory is gone
        try:
            write_fully(self._fs, fd, (content,), 0)
            if path in self._renames:
                self._fs.truncate(fd, len(content))
        finally:
            self._fs.close(fd)
        return True


def replace_file(
    fs: FileSystem, path: str, content: Buffer, *, sync_directory: bool = True
) -> None:
    """Write durably to a temporary file, then rename: a crash leaves the old or the new content."""
    temporary = path + ".tmp"
    write_file(fs, temporary, content, sync=True)
    fs.rename(temporary, path)
    if sync_directory:
        fs.sync_directory(str(Path(path).parent))
