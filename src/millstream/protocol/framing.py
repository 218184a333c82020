"""Frames: a four-byte length, big-endian, then that many bytes. Without I/O.

`FrameReader` cuts a byte stream into frames. Whoever owns the socket either hands it bytes
(`receive_data`) or, without a copy, lets the socket write where the reader says (`get_buffer`,
`buffer_updated`), then takes frames until `next_frame` has none.

Memory. All readers of one event loop share one `ReceiveBuffer`: small frames are used where the
socket put them, and an idle connection holds no buffer at all. Only a frame too long for the shared
buffer gets one of its own, which grows with the bytes that have really arrived: a length field
never allocates by itself.

Lifetime. A frame is a view of a buffer that the next read overwrites. It is valid until
`get_buffer` or `receive_data` of *any* reader that shares the buffer is called; who needs it longer
copies it, and `hold` copies what has not been taken yet.
"""

from __future__ import annotations

from struct import Struct

from millstream.errors import ProtocolError

LENGTH_BYTES = 4
SHARED_BUFFER_BYTES = 256 * 1024

_LENGTH = Struct(">i")
_EMPTY = memoryview(b"")


class ReceiveBuffer:
    """The memory that sockets of one event loop read into, one after the other."""

    __slots__ = ("view",)

    def __init__(self, size_bytes: int = SHARED_BUFFER_BYTES) -> None:
        self.view = memoryview(bytearray(size_bytes))


class FrameReader:
    """Cuts one connection's bytes into frames."""

    __slots__ = (
        "_data",
        "_end",
        "_frame_bytes_max",
        "_long",
        "_long_filled",
        "_long_needed",
        "_position",
        "_rest",
        "_shared",
    )

    def __init__(self, frame_bytes_max: int, shared: ReceiveBuffer | None = None) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._shared = (shared or ReceiveBuffer()).view
        self._data = _EMPTY  # where frames are being taken from
        self._position = 0  # in _data: the next frame's length field
        self._end = 0  # in _data: the end of what was received
        self._rest = b""  # the beginning of a short frame that has not all arrived
        self._long = _EMPTY  # holds one frame too long for the shared buffer
        self._long_filled = 0  # how much of it has arrived
        self._long_needed = 0  # its size with its length field; 0 when there is no such frame

    def get_buffer(self) -> memoryview:
        """Where the socket should put what it reads next. Frames handed out earlier end here."""
        if self._long_needed:
            return self._long[self._long_filled : self._long_needed]
        rest = self._rest
        if not rest:
            return self._shared
        self._shared[: len(rest)] = rest
        return self._shared[len(rest) :]

    def buffer_updated(self, size_bytes: int) -> None:
        """The socket has put that many bytes into the buffer it was given."""
        self._position = 0
        if not self._long_needed:
            self._data = self._shared
            self._end = len(self._rest) + size_bytes
            self._rest = b""
            return
        self._long_filled += size_bytes
        if self._long_filled == self._long_needed:
            self._data = self._long
            self._end = self._long_needed
            self._long_needed = 0
        elif self._long_filled == len(self._long):
            self._reserve_long(self._long_filled, self._long)

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that were read elsewhere, after those that are still untaken."""
        self._data = memoryview(self._untaken() + bytes(data))
        self._position, self._end = 0, len(self._data)
        self._rest = b""
        self._long_needed = 0

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
            raise ProtocolError(
                f"a frame of {length} bytes; at most {self._frame_bytes_max} are taken "
                "(socket.request.max.bytes)"
            )
        start = position + LENGTH_BYTES
        stop = start + length
        if stop > self._end:
            self._set_aside(LENGTH_BYTES + length)
            return None
        self._position = stop
        return self._data[start:stop]

    def hold(self) -> bool:
        """Copy what has not been taken, so that others may use the shared buffer meanwhile.

        Returns whether there is anything: then no more may be received until it is taken.
        """
        if self._end == self._position:
            return False
        self._data = memoryview(bytes(self._data[self._position : self._end]))
        self._position, self._end = 0, len(self._data)
        return True

    def release(self) -> None:
        """Give back a long frame's memory, kept for the next one, when no frame is under way."""
        if not self._long_needed and self._end == self._position:
            self._long = self._data = _EMPTY
            self._position = self._end = 0

    def _untaken(self) -> bytes:
        if self._long_needed:
            return bytes(self._long[: self._long_filled])
        return self._rest + bytes(self._data[self._position : self._end])

    def _set_aside(self, needed_bytes: int) -> None:
        """Keep the beginning of a frame until the rest of it arrives."""
        available = self._end - self._position
        if available and needed_bytes * 2 > len(self._shared):
            self._long_needed = needed_bytes
            self._reserve_long(available, self._data[self._position : self._end])
        elif available:
            self._rest = bytes(self._data[self._position : self._end])
        self._position = self._end = 0

    def _reserve_long(self, received_bytes: int, received: memoryview) -> None:
        """Make room for a long frame: four times what has arrived, up to what it needs."""
        capacity = min(self._long_needed, max(SHARED_BUFFER_BYTES, 4 * received_bytes))
        if capacity > len(self._long):
            long = memoryview(bytearray(capacity))
            long[:received_bytes] = received
            self._long = long
        elif received.obj is not self._long.obj:
            self._long[:received_bytes] = received
        self._long_filled = received_bytes
