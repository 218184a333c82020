"""The outgoing half of a connection: responses in the order of the requests, one write per turn.

A response that is ready before an older one waits in its `Slot`. All that are ready leave together
at the end of the turn (`turn.py`).

Responses are counted (`memory.py`) from the moment they are encoded until the transport has sent
them: in `_out`, in a `Slot` behind an older request, or in the transport. The transport's limits
are zero, so `pause_writing` says that something was left to send, and `resume_writing` that all was
sent.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, cast

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.network.memory import MINIMUM_BYTES, ResponseMemory
from millstream.errors import MillstreamError
from millstream.protocol.wire import Buffer, Piece

if TYPE_CHECKING:
    from millstream.broker.turn import Turn

# With TLS, what one write gives the socket is not counted while the client has not read it.
TLS_WRITE_BYTES_MAX = 128 * 1024
JOINED_WRITE_BYTES_MAX = 64 * 1024  # below this, copying pieces together beats a writev of many

BUFFERS = (bytes, bytearray, memoryview)

_RESPONSE_HEAD = Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD = Struct(">iib")


class Slot:
    """The place of one response in the order of its connection."""

    body: Buffers = b""
    is_ready = False
    waiting_bytes = 0  # of a response that is ready and not the next to be sent
    deferred: Deferred | None = None

    def __init__(self, connection: ResponseQueue, correlation_id: int, flexible: bool) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.flexible = flexible

    def deferred_is_done(self, deferred: Deferred) -> None:
        self.complete(deferred.body)

    def complete(self, body: Buffers | None) -> None:
        if body is None:
            self.connection.abort("the response could not be produced")
            return
        self.body = body
        self.is_ready = True
        self.connection.slot_is_ready(self)


class ResponseQueue(ABC):
    """The responses of one connection; the base class of `Connection`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: ResponseMemory, turn: Turn) -> None:
        self._loop = loop
        self._memory = memory
        self._turn = turn
        self._slots: deque[Slot] = deque()  # the answers still owed, oldest first
        self._out: list[Piece] = []  # answered in this turn, not yet written
        self._out_bytes = 0
        self._behind_bytes = 0  # in slots that are ready and not the next to be sent
        self._waiting_bytes = 0  # all that the client has not read: behind, out, in the transport
        self._counted_bytes = 0  # what of it is in memory.held_bytes
        self._write_scheduled = False
        self._write_paused = False
        self._in_process = False  # requests are handled; their responses are written afterwards
        self._reading_paused = False
        self._unsent_seen = 0  # what the transport had not sent when it was last asked
        self._sent_at = 0.0  # loop time when that last changed
        self.is_closing = False
        self._socket_fd = -1
        self._uses_tls = False
        self._transport: asyncio.Transport

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Disconnect the client, with one line in the log."""

    @abstractmethod
    def close_now(self, reason: str = "") -> None:
        """Close without sending queued responses."""

    @abstractmethod
    def _resume(self) -> None:
        """Continue with the waiting requests."""

    def pause_writing(self) -> None:
        """The client has not read all that was written."""
        self._write_paused = True
        self._sent_at = self._loop.time()

    def resume_writing(self) -> None:
        """Everything that was written has been sent."""
        self._write_paused = False
        self._waiting_bytes = self._behind_bytes + self._out_bytes
        self._count_waiting()
        self._resume()

    @property
    def requests_in_flight(self) -> int:
        return len(self._slots)

    @property
    def is_busy(self) -> bool:
        """Whether a response is pending or waits for the client to read it."""
        return bool(self._slots) or self._write_paused

    def response_bytes_max(self) -> int:
        """Maximum size of the next response."""
        return max(MINIMUM_BYTES, self._memory.allowance - self._waiting_bytes)

    def stalled_seconds(self, now: float) -> float:
        """For how long the client has not read waiting responses."""
        if not self._write_paused:
            return 0.0
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent_seen:
            self._unsent_seen = unsent
            self._sent_at = now
        return now - self._sent_at

    def slot_is_ready(self, ready: Slot) -> None:
        """A response has come: write those whose turn it is."""
        slots = self._slots
        if not slots:  # the connection is gone
            return
        if ready is not slots[0]:
            self._hold_back(ready)
            return
        while slots and slots[0].is_ready:
            slot = slots.popleft()
            if slot.waiting_bytes:
                self._behind_bytes -= slot.waiting_bytes
                self._waiting_bytes -= slot.waiting_bytes
            self._put(slot.correlation_id, slot.flexible, slot.body)
        if self._in_process:
            return
        if self._out and not self._write_scheduled:
            self._write_scheduled = True
            self._turn.call_at_end(self._write_scheduled_out)

    def _answer(self, correlation_id: int, flexible: bool, body: Buffers) -> None:
        if not self._slots:
            self._put(correlation_id, flexible, body)
            return
        slot = Slot(self, correlation_id, flexible)
        slot.body = body
        slot.is_ready = True
        self._slots.append(slot)
        self._hold_back(slot)

    def _hold_back(self, slot: Slot) -> None:
        """A response is ready before an older one."""
        slot.body = _read_files(slot.body)  # they can only be sent in this turn
        slot.waiting_bytes = _size_of(slot.body)
        self._behind_bytes += slot.waiting_bytes
        self._waiting_bytes += slot.waiting_bytes
        self._count_waiting()

    def _count_waiting(self) -> None:
        """Update the memory accounting for this client."""
        self._memory.add(self._waiting_bytes - self._counted_bytes)
        self._counted_bytes = self._waiting_bytes

    def _drop_responses(self) -> None:
        """The connection is gone."""
        for slot in self._slots:
            if slot.deferred is not None:
                slot.deferred.cancel()
        self._slots.clear()
        self._out.clear()
        self._out_bytes = self._behind_bytes = self._waiting_bytes = 0
        self._count_waiting()

    def _put(self, correlation_id: int, flexible: bool, body: Buffers) -> None:
        """Queue a response for this turn's write."""
        pieces: Sequence[Piece] = (body,) if isinstance(body, bytes) else body
        size = sum(map(len, pieces))
        if flexible:
            head = _FLEXIBLE_RESPONSE_HEAD.pack(size + 5, correlation_id, 0)
        else:
            head = _RESPONSE_HEAD.pack(size + 4, correlation_id)
        self._out += (head, *pieces)
        self._out_bytes += size
        self._waiting_bytes += size

    def _write_scheduled_out(self) -> None:
        self._write_scheduled = False
        self._write_out()
        if self.is_closing and not self._slots:
            self._transport.close()
        elif self._reading_paused:
            self._loop.call_soon(self._resume)  # it may be the turn of another connection

    def _write_out(self) -> None:
        out = self._out
        if not out:
            return
        self._out = []
        size, self._out_bytes = self._out_bytes, 0
        if self._transport.is_closing():  # the client left without waiting for its response
            self._waiting_bytes = self._behind_bytes
            self._count_waiting()
            return
        if size <= JOINED_WRITE_BYTES_MAX:
            self._transport.write(b"".join(cast(list[Buffer], out)))
        else:
            self._write_large(out)
        if not self._write_paused:  # all of it was sent
            self._waiting_bytes = self._behind_bytes
        if self._waiting_bytes != self._counted_bytes:
            self._count_waiting()

    def _write_large(self, out: list[Piece]) -> None:
        """Write without joining. A range of a file is sent by the kernel as far as the socket takes
        it, and the transport sends the rest."""
        transport = self._transport
        if self._uses_tls:  # there are no files: see `Client.takes_files`
            for buffer in cast(list[Buffer], out):
                for start in range(0, len(buffer), TLS_WRITE_BYTES_MAX):
                    transport.write(memoryview(buffer)[start : start + TLS_WRITE_BYTES_MAX])
            return
        buffers: list[Buffer] = []
        for piece in out:
            if isinstance(piece, BUFFERS):
                buffers.append(piece)
                continue
            transport.writelines(buffers)
            buffers = []
            try:
                sent = 0 if transport.get_write_buffer_size() else piece.send(self._socket_fd)
                if sent < len(piece):
                    buffers.append(piece.read(sent))
            except (OSError, MillstreamError) as error:  # the client is gone, or the file
                self.close_now(f"a response could not be sent: {error}")
                return
        if buffers:
            transport.writelines(buffers)


def _read_files(body: Buffers) -> Buffers:
    if isinstance(body, bytes):
        return body
    return [piece if isinstance(piece, BUFFERS) else piece.read() for piece in body]


def _size_of(body: Buffers) -> int:
    return len(body) if isinstance(body, bytes) else sum(map(len, body))
