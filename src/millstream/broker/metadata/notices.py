"""Notices of changed files in a directory, on the event loop.

Linux reports them (inotify). Elsewhere, and if the kernel's limit of watches is reached, the
callback is called every 50 ms instead. One call may stand for several changes, or for none: the
callback looks at the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Callable

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05

_IN_MODIFY = 0x2
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_EVENT_BYTES = 64 * 1024


class Notices:
    """Calls `on_change` after every change, until it is closed."""

    def __init__(self, path: str, on_change: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._timer: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        try:
            self._fd = _watch(path)
        except OSError as error:
            logger.warning(
                "changes of %s cannot be watched (%s): looking every %.0f ms",
                *(path, error, POLL_SECONDS * 1000),
            )
            self._poll()
        else:
            self._loop.add_reader(self._fd, self._drain)

    @property
    def is_polling(self) -> bool:
        return self._fd is None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _drain(self) -> None:
        if self._fd is None:
            return
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._fd, _EVENT_BYTES)) > _EVENT_BYTES // 2:
                pass
        self._on_change()

    def _poll(self) -> None:
        self._timer = self._loop.call_later(POLL_SECONDS, self._poll)
        self._on_change()


def _watch(path: str) -> int:
    """A descriptor that becomes readable when a file in the directory is written or created."""
    if sys.platform != "linux":
        raise OSError("only Linux can")
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    events = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
    if libc.inotify_add_watch(fd, os.fsencode(path), events) < 0:
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, os.strerror(number), path)
    return fd
