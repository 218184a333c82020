"""A range of a file that is sent without passing through this process.

It is for the thread that owns the file, and for the turn of the event loop in which it was made:
later the range may be evicted from the page cache, and the segment deleted.
"""

from __future__ import annotations

from millstream.errors import NotCached
from millstream.storage._core import FileHandle
from millstream.storage.handles import FileHandles


class FileRange:
    """Bytes of a file that are in the page cache."""

    __slots__ = ("_handle", "_handles", "_position", "_size", "end_offset")

    def __init__(
        self,
        handles: FileHandles,
        handle: FileHandle,
        position: int,
        size: int,
        end_offset: int,
    ) -> None:
        self._handles = handles
        self._handle = handle
        self._position = position
        self._size = size
        self.end_offset = end_offset  # the offsets of its records are lower

    def __len__(self) -> int:
        return self._size

    def send(self, socket_fd: int) -> int:
        """Send to a non-blocking socket as much as it takes now; returns how much that was."""
        fd, sent = self._handles.owner_fd(self._handle), 0
        while sent < self._size:
            try:
                count = self._handles.fs.sendfile(
                    socket_fd, fd, self._position + sent, self._size - sent
                )
            except BlockingIOError:
                break
            except OSError:
                if not sent:
                    raise
                break
            if not count:
                break  # the file is shorter than it was
            sent += count
        return sent

    def read(self, start: int = 0) -> bytes | bytearray:
        """The bytes from `start` on."""
        fd = self._handles.owner_fd(self._handle)
        size, position = self._size - start, self._position + start
        try:
            return self._handles.fs.pread_cached(fd, size, position)
        except NotCached:  # evicted within this turn
            return self._handles.fs.pread(fd, size, position)
