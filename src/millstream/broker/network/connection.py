"""One client's connection: frames in, handlers started in order, responses out in order.

Theory of operation. The transport reads into a buffer that all connections share, the frames in
it are handled one after the other in `buffer_updated`, and whatever was answered in that turn
leaves in one write. A handler answers in one of three ways:

    at once     a raw handler (Produce, Fetch, Metadata, ApiVersions) or a plain function returns
                the answer: no Task and no Future is made, which makes small requests fast
    later       a raw handler returns a `Deferred` (waiting for a flush, for data to arrive)
    as a task   a coroutine handler runs as an asyncio Task

An answer that is ready before an older one waits in its `_Slot`, so responses leave in the order of
the requests.

Bounds. Frames are no longer handled, and then no longer read, while the client does not take what
was written (`pause_writing`), while `in_flight_max` requests wait, or while an exclusive `Deferred`
waits; so a slow reader costs at most one large answer. A client that breaks the protocol is cut off
with one log line.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, ProtocolError
from millstream.protocol import messages
from millstream.protocol.apis import APIS, Api
from millstream.protocol.framing import FrameReader
from millstream.protocol.headers import (
    API_VERSIONS_KEY,
    body_start,
    client_id_of,
    parse_fixed,
)
from millstream.protocol.wire import Buffer

if TYPE_CHECKING:
    from millstream.broker.services import Services
    from millstream.broker.tasks import Tasks
    from millstream.protocol.framing import ReceiveBuffer

logger = logging.getLogger("millstream.connection")

WRITE_BUFFER_BYTES_HIGH = 1024 * 1024
JOINED_WRITE_BYTES_MAX = 64 * 1024  # below this, copying pieces together beats a writev of many
ROUTES_MAX = 64  # contexts kept per connection; a client has one id and a dozen APIs

_RESPONSE_HEAD = Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD = Struct(">iib")


FindHandler: TypeAlias = Callable[[Api], Callable[..., Any]]


class ConnectionLimits(NamedTuple):
    frame_bytes_max: int = 100 * 1024 * 1024
    in_flight_max: int = 128
    idle_ms_max: int = 600_000


class ConnectionOwner(Protocol):
    """What a connection needs of the set of connections it belongs to."""

    loop: asyncio.AbstractEventLoop
    limits: ConnectionLimits
    receive_buffer: ReceiveBuffer
    services: Services
    tasks: Tasks
    find_handler: FindHandler

    def admit(self, connection: Connection) -> bool: ...

    def forget(self, connection: Connection) -> None: ...

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
    deferred: Deferred | None = None

    def __init__(self, connection: Connection, correlation_id: int, flexible: bool) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.flexible = flexible

    def complete(self, body: Buffers | None) -> None:
        if body is None:
            self.connection.abort("an answer could not be given")
            return
        self.body = body
        self.is_ready = True
        self.connection.slot_is_ready()


class Connection(asyncio.BufferedProtocol):
    """The broker's end of one TCP connection."""

    def __init__(self, connections: ConnectionOwner, listener: str, connection_id: int) -> None:
        self._connections = connections
        self.id = connection_id
        self._limits = connections.limits
        self._listener = listener
        self._loop = connections.loop
        self._frames = FrameReader(self._limits.frame_bytes_max, connections.receive_buffer)
        self._routes: dict[tuple[int, int, bytes], _Route] = {}
        self._slots: deque[_Slot] = deque()  # the answers still owed, oldest first
        self._out: list[
            bytes | bytearray | memoryview
        ] = []  # answered in this turn, not yet written
        self._out_bytes = 0
        self._write_scheduled = False
        self._exclusive: Deferred | None = None  # what later requests have to wait for
        self._task_is_starting = False
        self._write_paused = False
        self._reading_paused = False
        self._in_process = False
        self._is_blocked = False  # whether one of the reasons above holds, or it is closing
        self.is_closing = False
        self.last_active = 0.0  # loop time of the last bytes received
        self.client_host = ""
        self._transport: asyncio.Transport

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        peer = transport.get_extra_info("peername")
        self.client_host = peer[0] if isinstance(peer, tuple) else "local"
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
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

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, size_bytes: int) -> None:
        self.last_active = self._loop.time()
        self._frames.buffer_updated(size_bytes)
        self._process()

    def pause_writing(self) -> None:
        self._write_paused = self._is_blocked = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resume()

    # What the broker calls.

    def abort(self, reason: str) -> None:
        """Cut the client off, with one line in the log."""
        if self.is_closing:
            return
        self.is_closing = self._is_blocked = True
        logger.warning("connection from %s closed: %s", self.client_host, reason)
        self._write_out()
        self._transport.close()

    def close_when_answered(self) -> None:
        """Take no more requests; close once those under way are answered."""
        self.is_closing = self._is_blocked = True
        self._pause_reading()
        if self._exclusive is not None:  # always the last: nothing is started behind it
            self._exclusive.cancel()
            self._exclusive = None
            self._slots.pop()
        if not self._slots:
            self._write_out()
            self._transport.close()

    def close_now(self) -> None:
        self.is_closing = self._is_blocked = True
        self._transport.abort()

    def release_idle_memory(self) -> None:
        self._frames.release()

    @property
    def requests_in_flight(self) -> int:
        return len(self._slots)

    def slot_is_ready(self) -> None:
        """Some answer has come: write those whose turn it is."""
        slots = self._slots
        while slots and slots[0].is_ready:
            slot = slots.popleft()
            self._put(slot.correlation_id, slot.flexible, slot.body)
        if self._in_process:
            return
        if self._out and not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write_scheduled_out)

    # Requests.

    def _process(self) -> None:
        """Handle the frames that are there, as far as the bounds allow; write what was answered."""
        frames, slots, in_flight_max = self._frames, self._slots, self._limits.in_flight_max
        self._in_process = True
        try:
            while not self._is_blocked and len(slots) < in_flight_max:
                frame = frames.next_frame()
                if frame is None:
                    break
                self._handle(frame)
            else:
                if frames.hold():
                    self._pause_reading()
        except ProtocolError as error:
            self.abort(str(error))
        except Exception:  # a defect of ours must not take the neighbours down
            logger.exception("a request from %s failed", self.client_host)
            self.abort("an unexpected error; see above")
        finally:
            self._in_process = False
        if self._out:
            self._write_out()

    def _check_blocked(self) -> bool:
        """Whether requests have to wait; called whenever one of the reasons comes or goes."""
        self._is_blocked = (
            self._write_paused
            or self._exclusive is not None
            or self._task_is_starting
            or self.is_closing
        )
        return self._is_blocked

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
            raise ProtocolError(f"API {api_key} is not known here")
        if not api.min_version <= version <= api.max_version:
            if api_key == API_VERSIONS_KEY:  # the one question that may be asked in any version
                self._answer(correlation_id, False, self._connections.unsupported_version_answer())
                return None
            raise ProtocolError(f"{api.name} v{version} is not spoken here")
        context = RequestContext(
            services=self._connections.services,
            api_version=version,
            client_id=client_id_of(frame, client_end),
            client_host=self.client_host,
            listener=self._listener,
            connection_id=self.id,
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
        self._connections.tasks.start(_run_handler(route, request, slot.complete))
        # Later requests must not overtake it: a task takes its first step in the loop's next turn.
        self._task_is_starting = self._is_blocked = True
        self._loop.call_soon(self._task_has_started)

    def _task_has_started(self) -> None:
        self._task_is_starting = False
        self._resume()

    def _resume(self) -> None:
        """Go on with the requests that were held back."""
        if self._check_blocked() or self._in_process:
            return
        if self._reading_paused and len(self._slots) < self._limits.in_flight_max:
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

    def _wait_for(self, deferred: Deferred, correlation_id: int, flexible: bool) -> None:
        slot = _Slot(self, correlation_id, flexible)
        slot.deferred = deferred
        self._slots.append(slot)
        if deferred.exclusive:
            self._exclusive = deferred
            self._is_blocked = True
            deferred.when_complete(lambda body: self._exclusive_is_answered(slot, body))
        else:
            deferred.when_complete(slot.complete)

    def _exclusive_is_answered(self, slot: _Slot, body: Buffers | None) -> None:
        self._exclusive = None
        self._check_blocked()
        slot.complete(body)
        # At once: who waits for records should not wait for the other answers of this turn.
        self._write_out()

    def _put(self, correlation_id: int, flexible: bool, body: Buffers) -> None:
        """Queue a response for this turn's write."""
        pieces: Sequence[Buffer] = (body,) if isinstance(body, bytes) else body
        size = sum(map(len, pieces))
        if flexible:
            head = _FLEXIBLE_RESPONSE_HEAD.pack(size + 5, correlation_id, 0)
        else:
            head = _RESPONSE_HEAD.pack(size + 4, correlation_id)
        self._out += (head, *pieces)
        self._out_bytes += size

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
        if self._transport.is_closing():  # the client left without waiting for its answer
            return
        if size <= JOINED_WRITE_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            if not self._transport.is_closing():
                self._transport.pause_reading()


def _answer_of(route: _Route, request: Any) -> bytes:
    """Run a plain handler and encode what it answers."""
    try:
        fields = route.handler(route.context, request)
    except ApiError as error:
        fields = _error_fields(error)
    return messages.encode_response(route.api.name, route.context.api_version, fields)


async def _run_handler(
    route: _Route, request: Any, complete: Callable[[Buffers | None], None]
) -> None:
    """Run a coroutine handler and encode what it answers."""
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
        logger.exception("the answer of %s could not be encoded", route.api.name)
        complete(None)
    else:
        complete(body)


def _error_fields(error: ApiError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or error.code.description}
