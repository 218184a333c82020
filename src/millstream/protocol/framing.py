"""Frames: a four-byte length, big-endian, then that many bytes. Without I/O.

`FrameReader` splits a byte stream into frames. The owner of the socket lets it write into the
reader's buffer (`get_buffer`, `buffer_updated`), then takes frames until `next_frame` returns None.

Memory. All readers of one event loop share one `ReceiveBuffer`: small frames are used where the
socket put them, and an idle connection holds no buffer at all. Only a frame too long for the shared
buffer gets one of its own, which grows with the bytes that have really arrived: a length field
never allocates by itself. The shared buffer counts the bytes that its readers keep for themselves.
While these exceed `kept_bytes_max`, a long frame cannot grow (`needs_memory`): its socket must not
be read until `grow` succeeds.

Lifetime. A frame is a view of a buffer that the next read overwrites. It is valid until
`get_buffer` of *any* reader that shares the buffer is called; copy it to use it later. `hold`
copies what has not been taken yet.
"""

from __future__ import annotations

import sys
from struct import Struct

from millstream.errors import ProtocolError

LENGTH_BYTES = 4
SHARED_BUFFER_BYTES = 256 * 1024
TLS_HANDSHAKE = 0x1603  # how a client of TLS begins: a handshake, version 3.x
SCARCE_READ_BYTES = 16 * 1024  # received at once while readers keep too much

_LENGTH = Struct(">i")
_EMPTY = memoryview(b"")


class ReceiveBuffer:
    """The memory that sockets of one event loop read into, one after the other.

    `kept_bytes` is what the readers keep beside it, together.
    """

    __slots__ = ("is_scarce", "kept_bytes", "kept_bytes_max", "view")

    def __init__(
        self, size_bytes: int = SHARED_BUFFER_BYTES, kept_bytes_max: int = sys.maxsize
    ) -> None:
        self.view = memoryview(bytearray(size_bytes))
        self.kept_bytes = 0
        self.kept_bytes_max = kept_bytes_max
        self.is_scarce = False  # whether more is kept than that

    def add(self, size_bytes: int) -> None:
        """Count more bytes that a reader keeps, or fewer."""
        self.kept_bytes += size_bytes
        self.is_scarce = self.kept_bytes > self.kept_bytes_max


class FrameReader:
    """Splits one connection's bytes into frames."""

    __slots__ = (
        "_data",
        "_end",
        "_frame_bytes_max",
        "_kept_bytes",
        "_limit_name",
        "_long",
        "_long_filled",
        "_long_needed",
        "_may_exceed",
        "_pool",
        "_position",
        "_reserved_bytes",
        "_rest",
        "_shared",
        "long_frame_count",
        "needs_memory",
    )

    def __init__(self, frame_bytes_max: int, shared: ReceiveBuffer | None = None) -> None:
        self.limit(frame_bytes_max)
        self._pool = shared or ReceiveBuffer()
        self._shared = self._pool.view
        self._data = _EMPTY  # where frames are being taken from
        self._position = 0  # in _data: the next frame's length field
        self._end = 0  # in _data: the end of what was received
        self._rest = b""  # the beginning of a short frame that has not all arrived
        self._long = _EMPTY  # holds one frame too long for the shared buffer
        self._long_filled = 0  # how much of it has arrived
        self._long_needed = 0  # its size with its length field; 0 when there is no such frame
        self._kept_bytes = 0  # of ours in pool.kept_bytes
        self.long_frame_count = 0  # how many long frames have begun
        self._may_exceed = False  # whether a long frame may be kept beyond the limit
        self.needs_memory = False  # whether a long frame has to wait until others release memory

    def limit(
        self,
        frame_bytes_max: int,
        name: str = "socket.request.max.bytes",
        *,
        reserved_bytes: int = SHARED_BUFFER_BYTES,
    ) -> None:
        """Accept no longer frames than that, from the next one on; `name` is in the error.

        So much is reserved for a long frame when it begins, whatever of it has arrived.
        """
        self._frame_bytes_max = frame_bytes_max
        self._limit_name = name
        self._reserved_bytes = reserved_bytes

    def get_buffer(self) -> memoryview:
        """The buffer for the next read. Frames returned earlier become invalid."""
        if self._long_needed:
            return self._long[self._long_filled : self._long_needed]
        rest = self._rest
        if rest:
            self._shared[: len(rest)] = rest
        elif not self._pool.is_scarce:
            return self._shared
        if not self._pool.is_scarce:
            return self._shared[len(rest) :]
        # What cannot be handled at once has to be kept: receive little.
        return self._shared[len(rest) : len(rest) + SCARCE_READ_BYTES]

    def buffer_updated(self, size_bytes: int) -> None:
        """The socket has written that many bytes into the buffer."""
        self._position = 0
        if not self._long_needed:
            self._data = self._shared
            self._end = len(self._rest) + size_bytes
            self._rest = b""
            if self._kept_bytes:
                self._count_kept()
            return
        self._long_filled += size_bytes
        if self._long_filled == self._long_needed:
            self._data = self._long
            self._end = self._long_needed
            self._long_needed = 0
            self._may_exceed = False
        elif self._long_filled == len(self._long):
            self._reserve_long(self._long_filled, self._long, is_first=False)

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until more bytes have arrived.

        Raises `ProtocolError` for a length that no frame may have.
        """
        position = self._position
        available = self._end - position
        if available < LENGTH_BYTES:
            self._set_aside(LENGTH_BYTES)
            return None
        (length,) = _LENGTH.unpack_from(self._data, position)
        if length < 0 or length > self._frame_bytes_max:
            raise self._refusal(length)
        start = position + LENGTH_BYTES
        stop = start + length
        if stop > self._end:
            self._set_aside(LENGTH_BYTES + length)
            return None
        self._position = stop
        return self._data[start:stop]

    def _refusal(self, length: int) -> ProtocolError:
        if length >> 16 == TLS_HANDSHAKE:
            return ProtocolError("the client speaks TLS, but the listener does not")
        return ProtocolError(
            f"frame of {length} bytes exceeds the limit of {self._frame_bytes_max} "
            f"({self._limit_name})"
        )

    def hold(self) -> bool:
        """Copy frames that have not been taken, so that other readers can use the shared buffer.

        Returns whether there are any: then nothing may be received until they are taken.
        """
        if self._end == self._position:
            return False
        if self._data is self._shared:
            self._data = memoryview(bytes(self._data[self._position : self._end]))
            self._position, self._end = 0, len(self._data)
            self._count_kept()
        return True

    @property
    def is_receiving_long_frame(self) -> bool:
        return self._long_needed > 0

    def grow(self, *, whatever_others_keep: bool = False) -> bool:
        """Make room for a long frame that `needs_memory`, if there is some now.

        `whatever_others_keep` lets the whole frame exceed the limit.
        """
        self._may_exceed = whatever_others_keep
        self._reserve_long(self._long_filled, self._long, is_first=False)
        return not self.needs_memory

    def close(self) -> None:
        """Release everything; nothing is received any more."""
        self._long = self._data = _EMPTY
        self._rest = b""
        self._position = self._end = self._long_needed = 0
        self.needs_memory = False
        self._count_kept()

    def release(self) -> None:
        """Free the memory of a long frame, kept for the next one, if no frame is being received."""
        if not self._long_needed and self._end == self._position:
            self._long = self._data = _EMPTY
            self._position = self._end = 0
            self._count_kept()

    def _set_aside(self, needed_bytes: int) -> None:
        """Keep the start of a frame until the rest arrives."""
        available = self._end - self._position
        if available and needed_bytes * 2 > len(self._shared):
            self._long_needed = needed_bytes
            self.long_frame_count += 1
            received = self._data[self._position : self._end]
            self._reserve_long(available, received, is_first=True)
        elif available:
            self._rest = bytes(self._data[self._position : self._end])
        self._position = self._end = 0
        if self._data is not self._shared:
            self._data = _EMPTY
        if available or self._kept_bytes:
            self._count_kept()

    def _reserve_long(self, received_bytes: int, received: memoryview, *, is_first: bool) -> None:
        """Make room for a long frame: four times what has arrived, up to what it needs."""
        capacity = min(self._long_needed, max(self._reserved_bytes, 4 * received_bytes))
        self.needs_memory = False
        if capacity > len(self._long) and not self._may_exceed:
            pool = self._pool
            if pool.kept_bytes - self._kept_bytes + capacity > pool.kept_bytes_max:
                if not is_first:
                    self.needs_memory = True
                    return
                capacity = max(received_bytes, len(self._long))
                self.needs_memory = capacity == received_bytes
        self._replace_long(capacity, received_bytes, received)

    def _replace_long(self, capacity: int, received_bytes: int, received: memoryview) -> None:
        if capacity > len(self._long):
            long = memoryview(bytearray(capacity))
            long[:received_bytes] = received[:received_bytes]
            self._long = long
        elif received.obj is not self._long.obj:
            self._long[:received_bytes] = received
        self._long_filled = received_bytes
        self._count_kept()

    def _count_kept(self) -> None:
        """Tell the pool what this reader keeps."""
        kept = len(self._rest) + len(self._long)
        if self._data is not self._shared and self._data.obj is not self._long.obj:
            kept += len(self._data)
        self._pool.add(kept - self._kept_bytes)
        self._kept_bytes = kept
