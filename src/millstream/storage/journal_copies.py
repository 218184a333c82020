"""Copies of small appends to a segment, kept until they are flushed.

With them the journal need not read back from the segment what was just written there. Owner's
thread only.
"""

from __future__ import annotations

from millstream.records.batch import Buffer

COPIED_BYTES_MAX = 4096  # of one append
COPIES_BYTES_MAX = 16_384


class JournalCopies:
    """The bytes of a segment from some position to its end, if all of them are in memory."""

    __slots__ = ("_buffers", "_is_complete", "_size_bytes", "_start")

    def __init__(self) -> None:
        self._buffers: list[bytes] = []
        self._size_bytes = 0
        self._start = 0
        self._is_complete = False

    def add(self, buffers: list[Buffer], size: int) -> None:
        """Copy what was just written, unless it is too large."""
        if (
            size > COPIED_BYTES_MAX
            or not self._is_complete
            or self._size_bytes + size > COPIES_BYTES_MAX
        ):
            self._is_complete = False
            self._buffers.clear()
        else:
            self._buffers.append(b"".join(buffers))
            self._size_bytes += size

    def take(self, start: int, end: int) -> bytes | None:
        """The bytes from `start` to `end`, where the segment ends; then begin again there."""
        taken = None
        if self._is_complete and self._start == start:
            taken = self._buffers[0] if len(self._buffers) == 1 else b"".join(self._buffers)
        self.restart(end)
        return taken

    def restart(self, position: int) -> None:
        """Forget the copies: the next append is written at this position."""
        self._buffers = []
        self._size_bytes = 0
        self._start = position
        self._is_complete = True
