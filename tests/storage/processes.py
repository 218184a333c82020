"""Processes that are killed in the middle of their work with files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from millstream.storage.filesystem import FileSystem


class Killed(BaseException):
    """The process ends here."""


class Process:
    """The file system as one process uses it: it may be killed before any operation, or in the
    middle of a write. Its locks end with it."""

    def __init__(self, fs: FileSystem, *, dies_at: int = -1, torn_bytes: int = 0) -> None:
        self._fs = fs
        self._dies_at = dies_at
        self._torn_bytes = torn_bytes
        self._calls = count()
        self._open: set[int] = set()
        self.is_dead = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._fs, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_dead:
                raise Killed
            if next(self._calls) == self._dies_at:
                self._die(name, args)
            result = method(*args, **kwargs)
            if name in ("open", "lock"):
                self._open.add(result)
            elif name == "close":
                self._open.discard(args[0])
            return result

        return call

    def _die(self, name: str, args: Any) -> None:
        if name == "pwritev":
            fd, buffers, position = args
            self._fs.pwritev(fd, (b"".join(buffers)[: self._torn_bytes],), position)
        for fd in self._open:
            self._fs.close(fd)
        self.is_dead = True
        raise Killed
