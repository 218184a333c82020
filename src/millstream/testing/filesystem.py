"""An in-memory file system with realistic faults.

The fault model:

- **Power cut** (`crash`). Unsynced data is lost: bytes of a file since its last
  `fdatasync`, names in a directory since its last `sync_directory`. With a random generator, some
  of it survives instead, as on a real disk: any subset of the unsynced writes, the last of them
  torn at any byte, bytes between them zero; and a prefix of the changes of names, since
  filesystems journal those in order.
- **Full disk** (`fail_writes_after`). Writes succeed for so many bytes, one is cut short, and then
  they raise ENOSPC.
- **Failing sync** (`fail_next_sync`). It raises EIO once and, as on Linux, the pages are marked
  clean: syncs after it succeed, and yet the bytes, readable until then, are gone at the next power
  cut. Names are not lost like that: filesystems journal them, and stop when they cannot.
- **Failing disk** (`fail_everything_under`). Every operation below a path raises EIO.
- **Cold cache** (`evict`). `pread_cached` raises `NotCached` until the file is read with waiting.

Every operation is noted in `operations`, so that a test can prove what came before what.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath
from random import Random
from typing import NamedTuple

from millstream.errors import NotCached
from millstream.records.batch import Buffer


class Operation(NamedTuple):
    """An operation on the file system."""

    name: str
    path: str
    position: int = 0
    size: int = 0


class _Write(NamedTuple):
    position: int
    data: bytes


class _Inode:
    """A file: its cached content, its content on disk, and the changes in between."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: list[_Write | int] = []  # an int is a truncation
        self.cached = True
        self.modified_ms = 0


class _NameChange(NamedTuple):
    """A change of names that is not durable: the new target of `path`."""

    path: str
    inode: _Inode | None
    renamed_from: str | None = None


class MemoryFileSystem:
    """See the module. Safe to use from several threads."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._unsynced_names: list[_NameChange] = []
        self._directories: set[str] = {"/"}
        self._files: dict[int, tuple[str, _Inode]] = {}
        self._next_fd = 1000
        self._locked: dict[str, int] = {}
        self._bytes_until_full: int | None = None
        self._failing_syncs: list[str] = []
        self._failing_paths: list[str] = []

    # Faults

    def crash(self, random: Random | None = None) -> None:
        """Simulate a power cut. Open files are lost; reopen the logs. Clears injected faults."""
        with self._lock:
            self.heal()
            self._files.clear()
            self._locked.clear()
            kept = random.randint(0, len(self._unsynced_names)) if random else 0
            for change in self._unsynced_names[:kept]:
                _apply_name(self._durable_names, change)
            self._unsynced_names.clear()
            self._names = dict(self._durable_names)
            for inode in dict.fromkeys(self._names.values()):
                if random:
                    _keep_some(inode, random)
                inode.content = bytearray(inode.durable)
                inode.unsynced.clear()
                inode.cached = True

    def heal(self) -> None:
        """Clear injected faults; lost data stays lost."""
        self._bytes_until_full = None
        self._failing_syncs.clear()
        self._failing_paths.clear()

    def fail_writes_after(self, size: int | None) -> None:
        """Limit the disk to `size` more bytes; None: no limit."""
        self._bytes_until_full = size

    def fail_next_sync(self, path_part: str = "") -> None:
        """Fail the next sync of a file or directory whose path contains this, once."""
        self._failing_syncs.append(path_part)

    def fail_everything_under(self, path: str) -> None:
        self._failing_paths.append(path)

    def evict(self, path_part: str = "") -> None:
        """Evict cached content of files whose path contains this."""
        for path, inode in self._names.items():
            if path_part in path:
                inode.cached = False

    def flip(self, path: str, position: int, mask: int = 1) -> None:
        """Damage a byte, in memory and on the disk."""
        inode = self._names[path]
        inode.content[position] ^= mask
        if position < len(inode.durable):
            inode.durable[position] ^= mask

    # The FileSystem protocol: files

    def open(self, path: str, *, create: bool = False) -> int:
        with self._lock:
            self._check(path)
            inode = self._names.get(path)
            if inode is None:
                if not create or _parent(path) not in self._directories:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                inode = _Inode()
                self._change_name(path, inode)
                self._note("create", path)
            fd = self._next_fd
            self._next_fd += 1
            self._files[fd] = path, inode
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            path, _ = self._file(fd)
            del self._files[fd]
            if self._locked.get(path) == fd:
                del self._locked[path]

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        with self._lock:
            path, inode = self._file(fd)
            self._check(path)
            data = b"".join(buffers)
            room = self._bytes_until_full
            if room is not None:
                if room == 0 and data:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                data = data[:room]
                self._bytes_until_full = room - len(data)
            write = _Write(position, data)
            inode.unsynced.append(write)
            _apply_write(inode.content, write)
            self._note("write", path, position, len(data))
            return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        with self._lock:
            path, inode = self._file(fd)
            self._check(path)
            inode.cached = True
            return bytes(inode.content[position : position + size])

    def pread_cached(self, fd: int, size: int, position: int) -> bytearray:
        with self._lock:
            path, inode = self._file(fd)
            self._check(path)
            if not inode.cached or position + size > len(inode.content):
                raise NotCached(f"{path} is not in memory")
            return inode.content[position : position + size]

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        return False  # so that nothing is sent by the kernel, which does not know these files

    def sendfile(self, socket_fd: int, fd: int, position: int, size: int) -> int:
        raise NotImplementedError("a file in memory cannot be sent by the kernel")

    def size(self, fd: int) -> int:
        with self._lock:
            return len(self._file(fd)[1].content)

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            path, inode = self._file(fd)
            self._check(path)
            inode.unsynced.append(size)
            _apply_truncation(inode.content, size)
            self._note("truncate", path, size)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            path, inode = self._file(fd)
            self._check(path)
            unsynced, inode.unsynced = inode.unsynced, []
            self._fail_if_asked(path)  # the pages are clean from here on, written or not
            for change in unsynced:
                _apply(inode.durable, change)
            self._note("fdatasync", path, 0, len(inode.content))

    def drop_cache(self, fd: int) -> None:
        with self._lock:
            path, inode = self._file(fd)
            self._check(path)
            inode.content = bytearray(inode.durable)
            for change in inode.unsynced:
                _apply(inode.content, change)
            inode.cached = False

    # The FileSystem protocol: names

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._check(path)
            self._fail_if_asked(path)
            waiting, self._unsynced_names = self._unsynced_names, []
            for change in waiting:
                if _parent(change.path) == path:
                    _apply_name(self._durable_names, change)
                else:
                    self._unsynced_names.append(change)
            self._note("sync_directory", path)

    def sync_each(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self._directories:
                self.sync_directory(path)
            elif path in self._names:
                fd = self.open(path)
                try:
                    self.fdatasync(fd)
                finally:
                    self.close(fd)

    def sync_all(self, root: str, paths: Collection[str]) -> bool:
        self.sync_each(paths)
        return False

    def exists(self, path: str) -> bool:
        with self._lock:
            return path in self._names or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def file_size(self, path: str) -> int:
        with self._lock:
            return len(self._inode(path).content)

    def modified_ms(self, path: str) -> int:
        with self._lock:
            return self._inode(path).modified_ms

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            self._check(path)
            if path not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            entries = (*self._names, *self._directories)
            return [PurePosixPath(entry).name for entry in entries if _is_child(entry, path)]

    def make_directory(self, path: str) -> None:
        # Directories are durable at once: what is modelled is the loss of files.
        with self._lock:
            self._check(path)
            self._directories.update((path, *map(str, PurePosixPath(path).parents)))

    def remove_tree(self, path: str) -> None:
        with self._lock:
            self._check(path)
            inside = path + "/"
            self._directories = {
                entry
                for entry in self._directories
                if entry != path and not entry.startswith(inside)
            }
            for name in [name for name in self._names if name.startswith(inside)]:
                del self._names[name]
                self._durable_names.pop(name, None)
            self._unsynced_names = [
                change for change in self._unsynced_names if not change.path.startswith(inside)
            ]

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._check(source)
            if source in self._directories:
                self._rename_directory(source, target)
            else:
                inode = self._inode(source)
                self._change_name(target, inode, renamed_from=source)
            self._note("rename", target)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._check(path)
            self._inode(path)
            self._change_name(path, None)
            self._note("unlink", path)

    def lock(self, path: str) -> int:
        with self._lock:
            if path in self._locked:
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
            fd = self.open(path, create=True)
            self._locked[path] = fd
            return fd

    # Inside

    def _file(self, fd: int) -> tuple[str, _Inode]:
        try:
            return self._files[fd]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _inode(self, path: str) -> _Inode:
        try:
            return self._names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _note(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        self.operations.append(Operation(name, path, position, size))

    def _check(self, path: str) -> None:
        if any(path.startswith(prefix) for prefix in self._failing_paths):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _fail_if_asked(self, path: str) -> None:
        for part in self._failing_syncs:
            if part in path:
                self._failing_syncs.remove(part)
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _change_name(
        self, path: str, inode: _Inode | None, renamed_from: str | None = None
    ) -> None:
        change = _NameChange(path, inode, renamed_from)
        _apply_name(self._names, change)
        self._unsynced_names.append(change)

    def _rename_directory(self, source: str, target: str) -> None:
        """At once and durably: the model does not lose directories."""
        moved = {entry for entry in self._directories if (entry + "/").startswith(source + "/")}
        self._directories -= moved
        self._directories |= {target + entry.removeprefix(source) for entry in moved}
        for mapping in (self._names, self._durable_names):
            for path in [path for path in mapping if path.startswith(source + "/")]:
                mapping[target + path.removeprefix(source)] = mapping.pop(path)
        self._unsynced_names = [
            _move_change(change, source, target) for change in self._unsynced_names
        ]


def _move_change(change: _NameChange, source: str, target: str) -> _NameChange:
    """The same change, after a directory above it was renamed."""
    if not change.path.startswith(source + "/"):
        return change
    renamed_from = change.renamed_from
    return _NameChange(
        target + change.path.removeprefix(source),
        change.inode,
        renamed_from and target + renamed_from.removeprefix(source),
    )


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _is_child(path: str, directory: str) -> bool:
    return path != directory and _parent(path) == directory


def _apply_name(mapping: dict[str, _Inode], change: _NameChange) -> None:
    if change.inode is None:
        mapping.pop(change.path, None)
    else:
        mapping[change.path] = change.inode
    if change.renamed_from is not None:
        mapping.pop(change.renamed_from, None)


def _apply(content: bytearray, change: _Write | int) -> None:
    if isinstance(change, int):
        _apply_truncation(content, change)
    else:
        _apply_write(content, change)


def _apply_truncation(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply_write(content: bytearray, write: _Write) -> None:
    if len(content) < write.position:
        content.extend(bytes(write.position - len(content)))
    content[write.position : write.position + len(write.data)] = write.data


def _keep_some(inode: _Inode, random: Random) -> None:
    """Keep some unsynced changes; the last one possibly only in part."""
    for number, change in enumerate(inode.unsynced):
        is_last = number == len(inode.unsynced) - 1
        if random.random() < 0.5:
            continue
        if is_last and isinstance(change, _Write):
            change = change._replace(data=change.data[: random.randint(0, len(change.data))])
        _apply(inode.durable, change)
