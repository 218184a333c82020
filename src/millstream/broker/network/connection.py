"""One client's connection: frames in, handlers started in order, responses out in order.

Theory of operation. The transport reads into a buffer that all connections share, the frames in
it are handled one after the other in `buffer_updated`, and whatever was answered in that turn
leaves in one write. Consumers that wait for what these requests appended are answered first
(`turn.py`). A handler answers in one of three ways:

    at once     a raw handler (Produce, Fetch, Metadata, ApiVersions) or a plain function returns
                the answer: no Task and no Future is made, which makes small requests fast
    later       a raw handler returns a `Deferred` (waiting for a flush, for data to arrive)
    as a task   a coroutine handler runs as an asyncio Task

An answer that is ready before an older one waits in its `_Slot`, so responses leave in the order of
the requests.

Bounds. Frames are no longer handled, and then no longer read, while the responses that the client
has not read exceed its allowance (`memory.py`), while `in_flight_max` requests or `TASKS_MAX` tasks
are under way, or while an exclusive `Deferred` waits. A long request is not received while all
requests together take too much memory. One turn of the loop handles at most `TURN_REQUESTS_MAX`
requests and `TURN_RESPONSE_BYTES_MAX` of responses of a connection, then the others have their
turn. A client that breaks the protocol is disconnected, with one log line.

Responses are counted from the moment they are encoded until the transport has sent them: in
`_out`, in a `_Slot` behind an older request, or in the transport. The transport's limits are zero,
so `pause_writing` says that something was left to send, and `resume_writing` that all was sent.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.network.memory import MINIMUM_BYTES, ResponseMemory
from millstream.broker.services import Client, RequestContext
from millstream.errors import ApiError, ErrorCode, MillstreamError, ProtocolError
from millstream.protocol import messages
from millstream.protocol.apis import APIS, Api
from millstream.protocol.framing import FrameReader
from millstream.protocol.headers import (
    API_VERSIONS_KEY,
    body_start,
    client_id_of,
    parse_fixed,
)
from millstream.protocol.wire import Buffer, Piece

if TYPE_CHECKING:
    from millstream.broker.services import Services
    from millstream.broker.tasks import Tasks
    from millstream.protocol.framing import ReceiveBuffer

logger = logging.getLogger("millstream.connection")

TURN_REQUESTS_MAX = 64
TURN_RESPONSE_BYTES_MAX = 1024 * 1024
TASKS_MAX = 16  # of one connection; Kafka handles one request of a connection at a time
TASK_REQUEST_BYTES_MAX = 1024 * 1024  # what the requests of these tasks may take together
JOINED_WRITE_BYTES_MAX = 64 * 1024  # below this, copying pieces together beats a writev of many
ROUTES_MAX = 64  # contexts kept per connection; a client has one id and a dozen APIs

BUFFERS = (bytes, bytearray, memoryview)

_RESPONSE_HEAD = Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD = Struct(">iib")


FindHandler: TypeAlias = Callable[[Api], Callable[..., Any]]


class ConnectionLimits(NamedTuple):
    frame_bytes_max: int = 100 * 1024 * 1024
    in_flight_max: int = 128
    idle_ms_max: int = 600_000
    stalled_ms_max: int = 30_000  # while memory is short
    request_bytes_max: int = 256 * 1024 * 1024  # received and not handled, over all connections
    response_bytes_max: int = 128 * 1024 * 1024  # not read by clients, over all connections
    connection_response_bytes_max: int = 4 * 1024 * 1024


class ConnectionOwner(Protocol):
    """What a connection needs of the set of connections it belongs to."""

    loop: asyncio.AbstractEventLoop
    limits: ConnectionLimits
    receive_buffer: ReceiveBuffer
    response_memory: ResponseMemory
    memory_queue: deque[Connection]
    services: Services
    tasks: Tasks
    find_handler: FindHandler

    def admit(self, connection: Connection) -> bool: ...

    def forget(self, connection: Connection) -> None: ...

    def wait_for_memory(self, connection: Connection) -> None: ...

    def serve_memory_queue(self) -> None: ...

    def unsupported_version_answer(self) -> bytes: ...


class _Route:
    """How requests of one API and version from one client id are served."""

    __slots__ = ("api", "context", "flexible_request", "flexible_response", "handler", "is_task")

    def __init__(self, api: Api, context: RequestContext, handler: Callable[..., Any]) -> None:
        version = context.api_version
        self.api = api
        self.context = context
        self.handler = handler
        self.flexible_request = version >= api.first_flexible
        self.flexible_response = self.flexible_request and api.key != API_VERSIONS_KEY
        self.is_task = inspect.iscoroutinefunction(handler)


class _Slot:
    """The place of one response in the order of its connection."""

    body: Buffers = b""
    is_ready = False
    waiting_bytes = 0  # of a response that is ready and not the next to be sent
    deferred: Deferred | None = None

    def __init__(self, connection: Connection, correlation_id: int, flexible: bool) -> None:
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


class Connection(asyncio.BufferedProtocol):
    """The broker's end of one TCP connection."""

    def __init__(self, connections: ConnectionOwner, listener: str, connection_id: int) -> None:
        self._connections = connections
        self.id = connection_id
        self._limits = connections.limits
        self._memory = connections.response_memory
        self._listener = listener
        self._client = Client()
        self._loop = connections.loop
        self._turn = connections.services.turn
        self._frames = FrameReader(self._limits.frame_bytes_max, connections.receive_buffer)
        self._routes: dict[tuple[int, int, bytes], _Route] = {}
        self._slots: deque[_Slot] = deque()  # the answers still owed, oldest first
        self._out: list[Piece] = []  # answered in this turn, not yet written
        self._out_bytes = 0
        self._behind_bytes = 0  # in slots that are ready and not the next to be sent
        self._waiting_bytes = 0  # all that the client has not read: behind, out, in the transport
        self._counted_bytes = 0  # what of it is in memory.held_bytes
        self._write_scheduled = False
        self._exclusive: Deferred | None = None  # what later requests have to wait for
        self._task_is_starting = False
        self._tasks = 0  # under way
        self._task_request_bytes = 0
        self._tasks_are_full = False
        self._needs_memory = False  # to receive the rest of a request
        self._write_paused = False
        self._reading_paused = False
        self._in_process = False
        self._is_blocked = False  # whether one of the reasons above holds, or it is closing
        self.is_closing = False
        self.last_active = 0.0  # loop time of the last bytes received
        self._unsent_seen = 0  # what the transport had not sent when it was last asked
        self._sent_at = 0.0  # loop time when that last changed
        self._long_frame_seen = 0  # number of the long frame that was under way then
        self._long_frame_at = 0.0  # loop time when that was first seen
        self.client_host = ""
        self._socket_fd = -1
        self._transport: asyncio.Transport

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        peer = transport.get_extra_info("peername")
        self.client_host = peer[0] if isinstance(peer, tuple) else "local"
        self._transport.set_write_buffer_limits(high=0)
        socket = transport.get_extra_info("socket")
        if socket is not None:
            self._socket_fd = socket.fileno()
            self._client.takes_files = True
        self.last_active = self._loop.time()
        if not self._connections.admit(self):
            self.is_closing = self._is_blocked = True
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = self._is_blocked = True
        self._connections.forget(self)
        for slot in self._slots:
            if slot.deferred is not None:
                slot.deferred.cancel()
        self._slots.clear()
        self._out.clear()
        self._out_bytes = self._behind_bytes = self._waiting_bytes = 0
        self._count_waiting()
        self._frames.close()
        self._connections.serve_memory_queue()

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, size_bytes: int) -> None:
        self.last_active = self._loop.time()
        self._frames.buffer_updated(size_bytes)
        self._process()

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

    # Called by the broker.

    def abort(self, reason: str) -> None:
        """Disconnect the client, with one line in the log."""
        if self.is_closing:
            return
        self.is_closing = self._is_blocked = True
        logger.warning("connection from %s closed: %s", self.client_host, reason)
        self._write_out()
        self._transport.close()

    def close_when_answered(self) -> None:
        """Accept no more requests; close once those in flight are answered."""
        self.is_closing = self._is_blocked = True
        self._pause_reading()
        if self._exclusive is not None:  # always the last: nothing starts after it
            self._exclusive.cancel()
            self._exclusive = None
            self._slots.pop()
        if not self._slots:
            self._write_out()
            self._transport.close()

    def close_now(self, reason: str = "") -> None:
        """Close without sending queued responses."""
        if reason:
            logger.warning("connection from %s closed: %s", self.client_host, reason)
        self.is_closing = self._is_blocked = True
        self._transport.abort()

    def release_idle_memory(self) -> None:
        self._frames.release()

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

    def receiving_seconds(self, now: float) -> float:
        """For how long one and the same long request has been arriving."""
        if not self._frames.is_receiving_long_frame:
            return 0.0
        if self._frames.long_frame_count != self._long_frame_seen:
            self._long_frame_seen = self._frames.long_frame_count
            self._long_frame_at = now
        return now - self._long_frame_at

    def receive_on(self, *, whatever_others_keep: bool) -> bool:
        """Continue receiving a long request, if there is memory now."""
        if not self._frames.grow(whatever_others_keep=whatever_others_keep):
            return False
        self._needs_memory = False
        self._loop.call_soon(self._resume)
        return True

    @property
    def is_receiving_long_request(self) -> bool:
        return self._frames.is_receiving_long_frame

    def slot_is_ready(self, ready: _Slot) -> None:
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
            self._loop.call_soon(self._write_scheduled_out)

    # Requests.

    def _process(self) -> None:
        """Handle received frames, within the limits; write the responses."""
        frames, slots, in_flight_max = self._frames, self._slots, self._limits.in_flight_max
        waiting_max = min(self._memory.allowance, self._waiting_bytes + TURN_RESPONSE_BYTES_MAX)
        requests_left = TURN_REQUESTS_MAX
        self._in_process = True
        self._turn.begin()
        try:
            while (
                not self._is_blocked
                and requests_left
                and len(slots) < in_flight_max
                and self._waiting_bytes < waiting_max
            ):
                frame = frames.next_frame()
                if frame is None:
                    break
                requests_left -= 1
                self._handle(frame)
            else:
                if frames.hold():
                    self._pause_reading()
        except ProtocolError as error:
            self.abort(str(error))
        except Exception:  # a bug must not affect other connections
            logger.exception("a request from %s failed", self.client_host)
            self.abort("unexpected error; see above")
        finally:
            self._in_process = False
            self._turn.end()
        if self._out:
            self._write_out()
        if frames.needs_memory and not self.is_closing:
            self._needs_memory = self._is_blocked = True
            self._pause_reading()
            self._connections.wait_for_memory(self)
        elif self._connections.memory_queue:
            self._connections.serve_memory_queue()
        if self._reading_paused and not self._is_held_back():
            self._loop.call_soon(self._resume)

    def _check_blocked(self) -> bool:
        """Update whether requests must wait; called whenever a reason changes."""
        self._is_blocked = (
            self._exclusive is not None
            or self._task_is_starting
            or self._tasks_are_full
            or self._needs_memory
            or self.is_closing
        )
        return self._is_blocked

    def _is_held_back(self) -> bool:
        """Whether the next request must wait."""
        return (
            self._check_blocked()
            or len(self._slots) >= self._limits.in_flight_max
            or self._waiting_bytes >= self._memory.allowance
        )

    def _handle(self, frame: memoryview) -> None:
        api_key, version, correlation_id, client_end = parse_fixed(frame)
        key = (api_key, version, frame[8:client_end].tobytes())
        route = self._routes.get(key)
        if route is None:
            route = self._new_route(key, frame, correlation_id, client_end)
            if route is None:
                return
        body = frame[body_start(frame, client_end, flexible=route.flexible_request) :]
        if not route.api.raw:
            self._handle_decoded(route, correlation_id, body)
            return
        answer = route.handler(route.context, body)
        if isinstance(answer, Deferred):
            self._wait_for(answer, correlation_id, route.flexible_response)
        elif answer is not None:
            self._answer(correlation_id, route.flexible_response, answer)

    def _new_route(
        self, key: tuple[int, int, bytes], frame: memoryview, correlation_id: int, client_end: int
    ) -> _Route | None:
        api_key, version, _ = key
        api = APIS.get(api_key)
        if api is None:
            raise ProtocolError(f"unsupported API key: {api_key}")
        if not api.min_version <= version <= api.max_version:
            if api_key == API_VERSIONS_KEY:  # the only request allowed in any version
                self._answer(correlation_id, False, self._connections.unsupported_version_answer())
                return None
            raise ProtocolError(f"unsupported version: {api.name} v{version}")
        context = RequestContext(
            services=self._connections.services,
            api_version=version,
            client_id=client_id_of(frame, client_end),
            client_host=self.client_host,
            listener=self._listener,
            connection_id=self.id,
            response_bytes_max=self.response_bytes_max,
            client=self._client,
        )
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        route = self._routes[key] = _Route(api, context, self._connections.find_handler(api))
        return route

    def _handle_decoded(self, route: _Route, correlation_id: int, body: memoryview) -> None:
        api, version = route.api, route.context.api_version
        own_body = bytes(body)  # the buffer is reused while the handler works
        if api.exact:
            request = messages.decode_request_exactly(api.name, version, own_body)
        else:
            request = messages.decode_request(api.name, version, api.max_version, own_body)
        if not route.is_task:
            self._answer(correlation_id, route.flexible_response, _answer_of(route, request))
            return
        slot = _Slot(self, correlation_id, route.flexible_response)
        self._slots.append(slot)
        self._count_task(1, len(own_body))
        ended = partial(self._task_has_ended, slot, len(own_body))
        self._connections.tasks.start(_run_handler(route, request, ended))
        # Later requests must not overtake it: a task takes its first step in the loop's next turn.
        self._task_is_starting = self._is_blocked = True
        self._loop.call_soon(self._task_has_started)

    def _task_has_started(self) -> None:
        self._task_is_starting = False
        self._resume()

    def _task_has_ended(self, slot: _Slot, request_bytes: int, body: Buffers | None) -> None:
        self._count_task(-1, -request_bytes)
        self._check_blocked()
        slot.complete(body)
        if self._reading_paused:
            self._loop.call_soon(self._resume)

    def _count_task(self, tasks: int, request_bytes: int) -> None:
        self._tasks += tasks
        self._task_request_bytes += request_bytes
        self._tasks_are_full = (
            self._tasks >= TASKS_MAX or self._task_request_bytes >= TASK_REQUEST_BYTES_MAX
        )

    def _resume(self) -> None:
        """Continue with the waiting requests."""
        if self._check_blocked() or self._in_process or not self._reading_paused:
            return
        if not self._is_held_back():
            self._reading_paused = False
            self._process()
            if not self._reading_paused and not self.is_closing:
                self._transport.resume_reading()

    # Responses.

    def _answer(self, correlation_id: int, flexible: bool, body: Buffers) -> None:
        if not self._slots:
            self._put(correlation_id, flexible, body)
            return
        slot = _Slot(self, correlation_id, flexible)
        slot.body = body
        slot.is_ready = True
        self._slots.append(slot)
        self._hold_back(slot)

    def _hold_back(self, slot: _Slot) -> None:
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

    def _wait_for(self, deferred: Deferred, correlation_id: int, flexible: bool) -> None:
        slot = _Slot(self, correlation_id, flexible)
        slot.deferred = deferred
        self._slots.append(slot)
        if deferred.exclusive:
            self._exclusive = deferred
            self._is_blocked = True
            deferred.when_done(lambda done: self._exclusive_is_answered(slot, done.body))
        else:
            deferred.when_done(slot.deferred_is_done)

    def _exclusive_is_answered(self, slot: _Slot, body: Buffers | None) -> None:
        self._exclusive = None
        if self._check_blocked() or body is None or self._slots[0] is not slot:
            slot.complete(body)
        else:
            self._slots.popleft()
            self._put(slot.correlation_id, slot.flexible, body)
            if self._reading_paused:
                self._loop.call_soon(self._resume)
        # At once: records should not wait for the other responses of this turn.
        self._write_out()

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
        else:
            self._resume()

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

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            if not self._transport.is_closing():
                self._transport.pause_reading()


def _read_files(body: Buffers) -> Buffers:
    if isinstance(body, bytes):
        return body
    return [piece if isinstance(piece, BUFFERS) else piece.read() for piece in body]


def _size_of(body: Buffers) -> int:
    return len(body) if isinstance(body, bytes) else sum(map(len, body))


def _answer_of(route: _Route, request: Any) -> bytes:
    """Run a plain handler and encode its response."""
    try:
        fields = route.handler(route.context, request)
    except ApiError as error:
        fields = _error_fields(error)
    return messages.encode_response(route.api.name, route.context.api_version, fields)


async def _run_handler(
    route: _Route, request: Any, complete: Callable[[Buffers | None], None]
) -> None:
    """Run a coroutine handler and encode its response."""
    try:
        try:
            fields = await route.handler(route.context, request)
        except ApiError as error:
            fields = _error_fields(error)
        except Exception as error:
            logger.exception("%s failed", route.api.name)
            fields = _error_fields(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
        body = messages.encode_response(route.api.name, route.context.api_version, fields)
    except Exception:
        logger.exception("the response of %s could not be encoded", route.api.name)
        complete(None)
    else:
        complete(body)


def _error_fields(error: ApiError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or error.code.description}
