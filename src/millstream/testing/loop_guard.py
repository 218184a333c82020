"""A filesystem that notices when an event loop waits for the disk.

A broker serves all clients from one event loop, so a call that waits for the disk there holds up
all clients (docs/decisions/0005-event-loop.md). `LoopGuardFileSystem` is the machine's filesystem.
It records each call that may wait for the disk and is made in a thread whose event loop is running:

- syncs of files, directories and filesystems;
- reads that are not restricted to what is cached, and listings of directories;
- removal of files and trees, which takes long for large files.

The one exception is the broker's short inline flush, known by its frame on the stack. Renames,
creations and writes are not recorded: they change memory, and the disk follows later.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from millstream.storage.filesystem import OsFileSystem

INLINE_FLUSH = "Flusher._flush_inline"
STACK_FRAMES = 12


class DiskWait(NamedTuple):
    """A call that could have held up an event loop."""

    operation: str
    path: str
    stack: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.path} on the event loop:\n{self.stack}"


class LoopGuardFileSystem(OsFileSystem):
    """See the module. Records nothing inside `paused`: no requests are served at start and stop."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[DiskWait] = []
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def check(self) -> None:
        """Raise `AssertionError`, with stacks, if an event loop has waited."""
        if self.waits:
            raise AssertionError("\n".join(map(str, self.waits)))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._notice("pread", f"/proc/self/fd/{fd}")
        return OsFileSystem.pread(fd, size, position)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._notice("fdatasync", f"/proc/self/fd/{fd}")
        super().fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        self._notice("sync_directory", path)
        super().sync_directory(path)

    def sync_each(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        for path in paths:
            self._notice("sync_each", path)
        super().sync_each(paths)

    def sync_all(self, root: str, paths: Collection[str]) -> bool:
        self._notice("sync_all", root)
        return super().sync_all(root, paths)

    def listdir(self, path: str) -> list[str]:  # type: ignore[override]
        self._notice("listdir", path)
        return OsFileSystem.listdir(path)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._notice("unlink", path)
        OsFileSystem.unlink(path)

    def remove_tree(self, path: str) -> None:  # type: ignore[override]
        self._notice("remove_tree", path)
        OsFileSystem.remove_tree(path)

    def _notice(self, operation: str, path: str) -> None:
        if self._is_paused or asyncio._get_running_loop() is None:
            return
        frames = list(traceback.walk_stack(sys._getframe(2)))
        if any(frame.f_code.co_qualname == INLINE_FLUSH for frame, _ in frames):
            return
        stack = traceback.StackSummary.extract(iter(frames[STACK_FRAMES::-1]))
        where = os.path.realpath(path)  # of an open file: what its descriptor stands for
        self.waits.append(DiskWait(operation, where, "".join(stack.format())))
