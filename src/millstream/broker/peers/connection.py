"""One TCP connection to another broker: requests out, responses in, in order.

Requests are pipelined. The other broker answers in the order of the requests, so a request that
waits there, such as a Fetch without records, holds up all that follow: long requests need a
connection of their own.

A connection is lost as a whole. If the other broker closes it, answers something else than what
was asked, or does not answer a request in time, all requests in flight fail with `PeerError`: they
may have been carried out or not.

A long response is received where it stays: its buffer belongs to the caller, and the records in it
are never copied. Nothing is allocated for a response before its correlation id is known to be that
of the oldest request.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, cast

from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import APIS, Api
from millstream.protocol.headers import API_VERSIONS_KEY
from millstream.protocol.wire import Buffer, skip_tags

RECEIVE_BYTES = 64 * 1024  # longer responses get a buffer of their own
RESPONSE_BYTES_MAX = 256 * 1024 * 1024

_REQUEST = Struct(">ihhih")  # length, API key, version, correlation id, length of the client id
_RESPONSE = Struct(">ii")  # length, correlation id
_LENGTH_BYTES = 4
_API_BY_NAME = {api.name: api for api in APIS.values()}


class PeerError(ApiError):
    """Another broker cannot be reached, or its connection was lost before it answered."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class _InFlight(NamedTuple):
    correlation_id: int
    has_tags: bool  # whether the header of its response has tagged fields
    answer: asyncio.Future[memoryview]
    time_out: asyncio.TimerHandle


def api_of(name: str) -> Api:
    return _API_BY_NAME[name]


class PeerConnection(asyncio.BufferedProtocol):
    """See the module. `name` is that of the other broker in errors."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, client_id: str) -> None:
        self.name = name
        self.lost: str | None = None  # why it was closed; None while it is open
        self._loop = loop
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._in_flight: deque[_InFlight] = deque()
        # Where it begins is random, so that bytes that are not Kafka's are noticed.
        self._correlation_id = random.getrandbits(30)
        self._received = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._received)
        self._end = 0  # of what was received
        self._long: memoryview | None = None  # a response that is too long for that buffer
        self._long_end = 0
        self._is_last = False  # whether it closes when the requests in flight are answered

    def __len__(self) -> int:
        """How many requests are in flight."""
        return len(self._in_flight)

    # Requests

    def send(
        self,
        api: Api,
        version: int,
        body: bytes | Sequence[Buffer],
        *,
        timeout_seconds: float,
    ) -> asyncio.Future[memoryview]:
        """Send a request whose body is encoded, whole or in pieces. Returns the body of its
        response, or `PeerError`. A caller that is cancelled gives up only the answer."""
        if self.lost is not None:
            raise PeerError(self.lost)
        assert self._transport is not None, "it is not connected yet"
        pieces: Sequence[Buffer] = [body] if isinstance(body, bytes) else body
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        is_flexible = version >= api.first_flexible
        client_id = self._client_id
        size = _REQUEST.size - _LENGTH_BYTES + len(client_id) + is_flexible + sum(map(len, pieces))
        head = _REQUEST.pack(size, api.key, version, correlation_id, len(client_id)) + client_id
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        time_out = self._loop.call_later(timeout_seconds, self._time_out, api, timeout_seconds)
        has_tags = is_flexible and api.key != API_VERSIONS_KEY
        self._in_flight.append(_InFlight(correlation_id, has_tags, answer, time_out))
        if is_flexible:
            head += b"\0"
        self._transport.writelines([head, *pieces])
        return answer

    def close_when_answered(self) -> None:
        """Close once nothing is in flight; nothing more may be sent."""
        self._is_last = True
        if not self._in_flight:
            self.close("the session has ended")

    def close(self, reason: str) -> None:
        """Close at once. Requests in flight fail."""
        if self.lost is not None:
            return
        self.lost = f"{self.name}: {reason}"
        if self._transport is not None:
            self._transport.abort()
        in_flight, self._in_flight = self._in_flight, deque()
        self._long = None
        for request in in_flight:
            request.time_out.cancel()
            if not request.answer.done():
                request.answer.set_exception(PeerError(self.lost))
                request.answer.exception()  # the caller may have been cancelled

    def _time_out(self, api: Api, seconds: float) -> None:
        self.close(f"no answer to {api.name} after {seconds:g} s")

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.lost is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.close(f"connection lost: {error}" if error else "connection closed by the broker")

    def eof_received(self) -> bool:
        return False  # close

    def get_buffer(self, size_hint: int) -> memoryview:
        if self._long is not None:
            return self._long[self._long_end :]
        return self._view[self._end :]

    def buffer_updated(self, size_bytes: int) -> None:
        if self._long is None:
            self._end += size_bytes
            self._take_responses()
            return
        self._long_end += size_bytes
        if self._long_end == len(self._long):
            frame, self._long = self._long, None
            self._answer(frame)

    # Responses

    def _take_responses(self) -> None:
        """Answer with the whole responses that were received, and keep the rest."""
        position, end, view = 0, self._end, self._view
        while end - position >= _RESPONSE.size and self.lost is None:
            size, correlation_id = _RESPONSE.unpack_from(view, position)
            if not self._is_expected(size, correlation_id):
                return
            start = position + _LENGTH_BYTES
            if start + size > end:
                if _LENGTH_BYTES + size > RECEIVE_BYTES:
                    self._begin_long(size, view[start:end])
                    return
                break
            position = start + size
            self._answer(memoryview(bytes(view[start:position])))
        rest = end - position
        if position and rest:
            self._received[:rest] = self._received[position:end]
        self._end = rest

    def _is_expected(self, size: int, correlation_id: int) -> bool:
        expected = self._in_flight[0].correlation_id if self._in_flight else None
        if correlation_id != expected:
            self.close(f"answered request {correlation_id}, not {expected}")
        elif not _LENGTH_BYTES <= size <= RESPONSE_BYTES_MAX:
            self.close(f"announced a response of {size} bytes")
        return self.lost is None

    def _begin_long(self, size: int, received: memoryview) -> None:
        self._long = memoryview(bytearray(size))
        self._long[: len(received)] = received
        self._long_end = len(received)
        self._end = 0

    def _answer(self, frame: memoryview) -> None:
        request = self._in_flight.popleft()
        request.time_out.cancel()
        start = _LENGTH_BYTES
        if request.has_tags:
            try:
                start = skip_tags(frame, start)
            except IndexError:
                self._in_flight.appendleft(request)
                self.close("sent a response that ends in its header")
                return
        if not request.answer.done():
            request.answer.set_result(frame[start:])
        if self._is_last and not self._in_flight:
            self.close("the session has ended")
