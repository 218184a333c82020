"""One client's connection: frames in, handlers started in order, responses out in order.

Theory of operation. The transport reads into a buffer that all connections share, the frames in
it are handled one after the other in `buffer_updated`, and whatever was answered in that turn
leaves in one write. Consumers that wait for what these requests appended are answered first
(`turn.py`). A handler answers in one of three ways:

    at once     a raw handler (Produce, Fetch, Metadata, ApiVersions) or a plain function returns
                the answer: no Task and no Future is made, which makes small requests fast
    later       a raw handler returns a `Deferred` (waiting for a flush, for data to arrive)
    as a task   a coroutine handler runs as an asyncio Task

Responses leave in the order of the requests (`responses.py`).

Bounds. Frames are no longer handled, and then no longer read, while the responses that the client
has not read exceed its allowance (`memory.py`), while `in_flight_max` requests or `TASKS_MAX` tasks
are under way, while an exclusive `Deferred` waits, or while the client is throttled (`mute`). A
long request is not received while all requests together take too much memory. A request counts
until it is handled, or until it is answered if its handler keeps it. One turn of the loop handles
at most `TURN_REQUESTS_MAX` requests and `TURN_RESPONSE_BYTES_MAX` of responses of a connection,
then the others have their turn. A client that breaks the protocol is disconnected, with one log
line.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from millstream.broker.deferred import Buffers, Deferred, DelayedProduce
from millstream.broker.network.memory import ResponseMemory
from millstream.broker.network.responses import ResponseQueue, Slot
from millstream.broker.network.routing import FindHandler, Route
from millstream.broker.peers.peers import CLIENT_ID_PREFIX
from millstream.broker.services import Client, RequestContext
from millstream.errors import ProtocolError
from millstream.protocol.apis import APIS, Api
from millstream.protocol.framing import FrameReader
from millstream.protocol.headers import (
    API_VERSIONS_KEY,
    body_start,
    client_id_of,
    parse_fixed,
)
from millstream.security.principal import USER_TYPE

if TYPE_CHECKING:
    from millstream.broker.counters import RequestMeter
    from millstream.broker.network.metering import QuotaMeter
    from millstream.broker.security.tls import Identify
    from millstream.broker.services import Services
    from millstream.broker.tasks import Tasks
    from millstream.protocol.framing import ReceiveBuffer

logger = logging.getLogger("millstream.connection")

TURN_REQUESTS_MAX = 64
TURN_RESPONSE_BYTES_MAX = 1024 * 1024
TASKS_MAX = 16  # of one connection; Kafka handles one request of a connection at a time
TASK_REQUEST_BYTES_MAX = 1024 * 1024  # what the requests of these tasks may take together
MUTE_MS_MAX = 10_000  # at once: below the request time-outs and group sessions of clients
ROUTES_MAX = 64  # contexts kept per connection; a client has one id and a dozen APIs


class ConnectionLimits(NamedTuple):
    frame_bytes_max: int = 100 * 1024 * 1024
    in_flight_max: int = 128
    idle_ms_max: int = 600_000
    stalled_ms_max: int = 30_000  # while memory is short
    request_bytes_max: int = 256 * 1024 * 1024  # received and not handled, over all connections
    response_bytes_max: int = 128 * 1024 * 1024  # not read by clients, over all connections
    connection_response_bytes_max: int = 4 * 1024 * 1024


class ConnectionState(NamedTuple):
    """A connection at one moment, for metrics."""

    listener: str
    software: str
    in_flight: int
    tasks: int
    waits_for_records: bool  # by a fetch
    is_held_back: bool
    is_unread: bool
    is_muted: bool


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
    accepted_count: int
    refused_count: int
    failed_handshakes: int

    def admit(self, connection: Connection) -> bool: ...

    def forget(self, connection: Connection) -> None: ...

    def wait_for_memory(self, connection: Connection) -> None: ...

    def serve_memory_queue(self) -> None: ...

    def unsupported_version_answer(self) -> bytes: ...

    def quota_meter(self, api: Api, context: RequestContext) -> QuotaMeter | None: ...


class Connection(ResponseQueue, asyncio.BufferedProtocol):
    """The broker's end of one TCP connection."""

    def __init__(self, connections: ConnectionOwner, listener: str, connection_id: int) -> None:
        super().__init__(connections.loop, connections.response_memory, connections.services.turn)
        self._connections = connections
        self.id = connection_id
        self._limits = connections.limits
        self._listener = listener
        self._client = Client(self.mute)
        self._frames = FrameReader(self._limits.frame_bytes_max, connections.receive_buffer)
        self._routes: dict[tuple[int, int, bytes], Route] = {}
        self._exclusive: Deferred | None = None  # what later requests have to wait for
        self._exclusive_bytes = 0  # of its request
        self._task_is_starting = False
        self._tasks = 0  # under way
        self._task_request_bytes = 0
        self._tasks_are_full = False
        self._needs_memory = False  # to receive the rest of a request
        self._unmute_timer: asyncio.TimerHandle | None = None  # while the client is throttled
        self._is_blocked = False  # whether one of the reasons above holds, or it is closing
        self.last_active = 0.0  # loop time of the last bytes received
        self._long_frame_seen = 0  # number of the long frame that was under way then
        self._long_frame_at = 0.0  # loop time when that was first seen
        self.client_host = ""
        self.identify: Identify | None = None  # if clients show certificates

    @property
    def listener(self) -> str:
        return self._listener

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._client.port = peer[1]
        if not self.client_host:
            self.client_host = peer[0] if isinstance(peer, tuple) else "local"
        self._uses_tls = transport.get_extra_info("ssl_object") is not None
        # TLS transports pause at their limit and not beyond it.
        self._transport.set_write_buffer_limits(high=1 if self._uses_tls else 0)
        socket = transport.get_extra_info("socket")
        if socket is not None and not self._uses_tls:
            self._socket_fd = socket.fileno()
            self._client.takes_files = True
        authorizer = self._connections.services.authorizer
        if authorizer is not None:
            self._client.rights = authorizer.rights_of(self._client, self.client_host)
        self.last_active = self._loop.time()
        if not self._connections.admit(self):
            self._connections.refused_count += 1
            self.is_closing = self._is_blocked = True
            self._transport.abort()
            return
        self._connections.accepted_count += 1
        if self.identify is not None:
            self._take_principal(self.identify)

    def _take_principal(self, identify: Identify) -> None:
        """From the client's certificate, if it has shown one."""
        try:
            self._client.principal = identify(self._transport.get_extra_info("ssl_object"))
        except Exception as error:  # whatever it is, nobody goes on as ANONYMOUS
            if not isinstance(error, ValueError):
                logger.exception("the certificate from %s cannot be read", self.client_host)
            self._connections.failed_handshakes += 1
            self._audit_failure("SSL", None, str(error))
            self.abort(f"authentication failed: {error}")

    def _audit_failure(self, mechanism: str, user: str | None, reason: str) -> None:
        audit = self._connections.services.audit
        if audit is not None:
            from millstream.broker.security.audit import FailedAuthentication

            principal = None if user is None else f"{USER_TYPE}:{user}"
            audit.authentication_failed(
                FailedAuthentication(self.client_host, self._listener, mechanism, principal, reason)
            )

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = self._is_blocked = True
        self._connections.forget(self)
        self._drop_responses()
        self._release_exclusive()
        self._stop_muting()
        self._frames.close()
        self._connections.serve_memory_queue()

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, size_bytes: int) -> None:
        self.last_active = self._loop.time()
        self._frames.buffer_updated(size_bytes)
        self._process()

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
            self._release_exclusive()
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

    def mute(self, ms: int) -> None:
        """Throttle the client: handle and read no more requests for that time, at most
        `MUTE_MS_MAX`. Requests under way are answered. A second mute can only make it longer."""
        if ms <= 0 or self.is_closing:
            return
        seconds = min(ms, MUTE_MS_MAX) / 1000
        if self._unmute_timer is not None:
            seconds = max(seconds, self._unmute_timer.when() - self._loop.time())
            self._unmute_timer.cancel()
        self._unmute_timer = self._loop.call_later(seconds, self._unmute)
        self._is_blocked = True
        self._pause_reading()

    def unmute(self) -> None:
        """Serve the client again, if it is throttled."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute()

    def client_changed(self) -> None:
        """Its principal or the quotas have changed: find out again what applies to it."""
        self._routes.clear()
        self._client.fetch_usage = None

    @property
    def is_muted(self) -> bool:
        return self._unmute_timer is not None

    def release_idle_memory(self) -> None:
        self._frames.release()

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
    def state(self) -> ConnectionState:
        return ConnectionState(
            listener=self._listener,
            software=self._client.software,
            in_flight=len(self._slots),
            tasks=self._tasks,
            waits_for_records=not (
                self._exclusive is None or isinstance(self._exclusive, DelayedProduce)
            ),
            is_held_back=self._reading_paused and self._exclusive is None,
            is_unread=self._write_paused,
            is_muted=self.is_muted,
        )

    @property
    def is_receiving_long_request(self) -> bool:
        return self._frames.is_receiving_long_frame

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
        else:
            self._serve_memory_queue()
        if self._reading_paused and not self._is_held_back():
            self._loop.call_soon(self._resume)

    def _check_blocked(self) -> bool:
        """Update whether requests must wait; called whenever a reason changes."""
        self._is_blocked = (
            self._exclusive is not None
            or self._task_is_starting
            or self._tasks_are_full
            or self._needs_memory
            or self._unmute_timer is not None
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
        quota = route.quota
        if quota is not None:
            quota.unrecorded += len(frame)
            if quota.unrecorded >= quota.lease:
                self._handle_metered(route, quota, correlation_id, body)
                return
        handler, meter = route.handler, route.meter
        if meter is not None:
            count = meter.count = meter.count + 1
            if count >= meter.timed_at and route.api.raw:
                handler = meter.measured(handler)
        if not route.api.raw:
            self._handle_decoded(route, correlation_id, body)
            return
        answer = handler(route.context, body)
        if isinstance(answer, Deferred):
            self._wait_for(answer, correlation_id, route.flexible_response, len(body))
        elif answer is not None:
            self._answer(correlation_id, route.flexible_response, answer)

    def _handle_metered(
        self, route: Route, quota: QuotaMeter, correlation_id: int, body: memoryview
    ) -> None:
        """Handle a request of a client that has quotas."""
        meter = route.meter
        if meter is not None:
            meter.count += 1
        if route.is_task:
            self._start_task(route, correlation_id, bytes(body))
            return
        handle = route.handle_raw if route.api.raw else route.handle_decoded
        if meter is not None and meter.count >= meter.timed_at:
            handle = meter.measured(handle)
        answer = quota.answer(handle, body)
        if isinstance(answer, Deferred):
            self._wait_for(answer, correlation_id, route.flexible_response, len(body))
        elif answer is not None:
            self._answer(correlation_id, route.flexible_response, answer)

    def _new_route(
        self, key: tuple[int, int, bytes], frame: memoryview, correlation_id: int, client_end: int
    ) -> Route | None:
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
        handler = self._connections.find_handler(api)
        route = self._routes[key] = Route(api, context, handler, _meter(api, context))
        route.quota = self._quota_meter(api, context)
        return route

    def _quota_meter(self, api: Api, context: RequestContext) -> QuotaMeter | None:
        return self._connections.quota_meter(api, context)

    def _handle_decoded(self, route: Route, correlation_id: int, body: memoryview) -> None:
        own_body = bytes(body)  # the buffer is reused while the handler works
        if not route.is_task:
            answer = route.answer if route.meter is None else route.meter.measured(route.answer)
            answered = answer(route.decode(own_body))
            self._answer(correlation_id, route.flexible_response, answered)
        else:
            self._start_task(route, correlation_id, own_body)

    def _start_task(self, route: Route, correlation_id: int, own_body: bytes) -> None:
        request, meter, quota = route.decode(own_body), route.meter, route.quota
        slot = Slot(self, correlation_id, route.flexible_response)
        self._slots.append(slot)
        self._count_task(1, len(own_body))
        ended = partial(self._task_has_ended, slot, len(own_body))
        complete = ended if meter is None else meter.timing(ended)
        if quota is None:
            self._connections.tasks.start(route.run(request, complete))
        else:
            self._connections.tasks.start(quota.run(partial(route.run, request), complete))
        # Later requests must not overtake it: a task takes its first step in the loop's next turn.
        self._task_is_starting = self._is_blocked = True
        self._loop.call_soon(self._task_has_started)

    def _task_has_started(self) -> None:
        self._task_is_starting = False
        self._resume()

    def _task_has_ended(self, slot: Slot, request_bytes: int, body: Buffers | None) -> None:
        self._count_task(-1, -request_bytes)
        self._serve_memory_queue()
        self._check_blocked()
        slot.complete(body)
        if self._reading_paused:
            self._loop.call_soon(self._resume)

    def _count_task(self, tasks: int, request_bytes: int) -> None:
        self._tasks += tasks
        self._task_request_bytes += request_bytes
        self._connections.receive_buffer.add(request_bytes)
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

    def _unmute(self) -> None:
        self._unmute_timer = None
        self.last_active = self._loop.time()  # what it sent meanwhile was not read
        self._resume()

    def _stop_muting(self) -> None:
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = None

    def _wait_for(
        self, deferred: Deferred, correlation_id: int, flexible: bool, request_bytes: int
    ) -> None:
        slot = Slot(self, correlation_id, flexible)
        slot.deferred = deferred
        self._slots.append(slot)
        if deferred.exclusive:
            self._exclusive = deferred
            self._exclusive_bytes = request_bytes
            self._connections.receive_buffer.add(request_bytes)
            self._is_blocked = True
            deferred.when_done(lambda done: self._exclusive_is_answered(slot, done.body))
        else:
            deferred.when_done(slot.deferred_is_done)

    def _exclusive_is_answered(self, slot: Slot, body: Buffers | None) -> None:
        self._release_exclusive()
        if self._check_blocked() or body is None or self._slots[0] is not slot:
            slot.complete(body)
        else:
            self._slots.popleft()
            self._put(slot.correlation_id, slot.flexible, body)
            if self._reading_paused:
                self._loop.call_soon(self._resume)
        # At once: records should not wait for the other responses of this turn.
        self._write_out()

    def _release_exclusive(self) -> None:
        self._exclusive = None
        if self._exclusive_bytes:
            self._connections.receive_buffer.add(-self._exclusive_bytes)
            self._exclusive_bytes = 0
            self._serve_memory_queue()

    def _serve_memory_queue(self) -> None:
        """Memory was released: let requests of others continue."""
        if self._connections.memory_queue:
            self._connections.serve_memory_queue()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            if not self._transport.is_closing():
                self._transport.pause_reading()


def _meter(api: Api, context: RequestContext) -> RequestMeter | None:
    counters = context.services.counters
    if counters is None:
        return None
    of_broker = (context.client_id or "").startswith(CLIENT_ID_PREFIX)
    return counters.meter(api, context.api_version, of_broker=of_broker)
