"""All connections of a broker: admission, limits, idle time and shared state."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker.counters import ConnectionSurvey
from millstream.broker.network.connection import Connection, ConnectionLimits, ConnectionState
from millstream.broker.network.memory import ResponseMemory
from millstream.broker.network.routing import FindHandler
from millstream.broker.tasks import Tasks
from millstream.protocol.framing import ReceiveBuffer

if TYPE_CHECKING:
    from millstream.broker.network.metering import QuotaMeter
    from millstream.broker.security.authentication import Authenticator
    from millstream.broker.services import RequestContext, Services
    from millstream.protocol.apis import Api

logger = logging.getLogger("millstream.connection")

SURVEYED_AT_ONCE = 200
IDLE_MEMORY_SECONDS = 5.0  # a connection quiet for that long gives its buffers back


class Connections:
    """The open connections, and the tasks that serve them."""

    def __init__(
        self,
        services: Services,
        limits: ConnectionLimits,
        find_handler: FindHandler,
    ) -> None:
        self.services = services
        self.find_handler = find_handler
        self.loop = services.loop
        self.limits = limits
        self.receive_buffer = ReceiveBuffer(kept_bytes_max=limits.request_bytes_max)
        self.response_memory = ResponseMemory(
            limits.response_bytes_max, limits.connection_response_bytes_max
        )
        # Connections whose long requests wait for memory, and one that receives without waiting.
        self.memory_queue: deque[Connection] = deque()
        self._beyond_limit: Connection | None = None
        self.on_close: list[Callable[[int], None]] = []  # called with the id of a closed connection
        self._ids = itertools.count()
        self._open: set[Connection] = set()
        self._expected: set[Connection] = set()  # accepted; their handshakes are under way
        self.failed_handshakes = 0  # of TLS
        self.authenticator: Authenticator | None = None  # if there is a listener with SASL
        self._per_host: Counter[str] = Counter()
        self.accepted_count = 0  # since the start, for metrics
        self.refused_count = 0
        self.tasks = Tasks(services.loop)
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, listener: str) -> Connection:
        """The protocol for a connection that is about to be made."""
        if not self.services.config.listener_protocols[listener].uses_sasl:
            return Connection(self, listener, next(self._ids))
        from millstream.broker.network.sasl import SaslConnection

        assert self.authenticator is not None, "nobody could authenticate"
        return SaslConnection(self, listener, next(self._ids), self.authenticator)

    def too_soon_ms(self, host: str) -> int:
        """Count a connection; after how many ms to close it, if its address opens them faster than
        its connection_creation_rate."""
        quotas = self.services.throttling.quotas
        if quotas is None:
            return 0
        return quotas.connection_ms(host, self.services.clock.monotonic_ms())

    def expect(self, connection: Connection) -> bool:
        """Whether to accept a new connection, before its handshake; logs the reason if not."""
        host = connection.client_host
        if self._is_closing:
            return False
        config = self.services.config
        is_full = len(self._open) + len(self._expected) >= config.max_connections
        if is_full and not self._is_for_brokers(connection):
            logger.warning("connection from %s refused: max.connections reached", host)
            return False
        limit = config.connections_per_ip_overrides.get(host, config.max_connections_per_ip)
        if self._per_host[host] >= limit:
            logger.warning("connection from %s refused: max.connections.per.ip reached", host)
            return False
        self._expected.add(connection)
        self._per_host[host] += 1
        return True

    def _is_for_brokers(self, connection: Connection) -> bool:
        """Whether it came to a listener that brokers have for themselves: clients that take all
        places must not part the cluster. As in Kafka."""
        config = self.services.config
        return len(config.endpoints) > 1 and connection.listener == config.inter_broker_listener

    def expect_no_more(self, connection: Connection) -> None:
        """The attempt to open a connection has ended, whether it is open or not."""
        if connection in self._expected:
            self._expected.remove(connection)
            self._count_out(connection.client_host)

    def admit(self, connection: Connection) -> bool:
        """A connection is open: whether to keep it."""
        if connection not in self._expected and not self.expect(connection):
            return False
        self._expected.remove(connection)
        if self._is_closing:
            self._count_out(connection.client_host)
            return False
        self._open.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._count_out(connection.client_host)
            for callback in self.on_close:
                callback(connection.id)

    def _count_out(self, host: str) -> None:
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    async def survey(self) -> ConnectionSurvey:
        """All connections, for metrics; other work is done in between."""
        states: list[ConnectionState] = []
        for position, connection in enumerate(tuple(self._open)):
            states.append(connection.state)
            if position % SURVEYED_AT_ONCE == SURVEYED_AT_ONCE - 1:
                await asyncio.sleep(0)
        per_listener = Counter({it.listener: 0 for it in self.services.config.endpoints})
        per_listener.update(it.listener for it in states)
        return ConnectionSurvey(
            per_listener=per_listener,
            per_software=Counter((*_name_and_version(it.software), it.listener) for it in states),
            accepted=self.accepted_count,
            refused=self.refused_count,
            held_back=sum(it.is_held_back for it in states),
            unread=sum(it.is_unread for it in states),
            muted=sum(it.is_muted for it in states),
            waiting_fetches=sum(it.waits_for_records for it in states),
            waiting_produces=sum(it.in_flight - it.tasks - it.waits_for_records for it in states),
            tasks=sum(it.tasks for it in states),
            response_bytes=self.response_memory.held_bytes,
            request_bytes=self.receive_buffer.kept_bytes,
        )

    def unsupported_version_answer(self) -> bytes:
        """The response to ApiVersions in a version that is not supported."""
        from millstream.broker.handlers.api_versions import encode_unsupported_version

        return encode_unsupported_version()

    def quota_meter(self, api: Api, context: RequestContext) -> QuotaMeter | None:
        """What counts the requests of a client, if quotas apply to it."""
        quotas = self.services.throttling.quotas
        if quotas is None:
            return None
        from millstream.broker.network.metering import meter_of

        return meter_of(api, context, quotas)

    def quotas_changed(self) -> None:
        """Apply the quotas to open connections."""
        for connection in list(self._open):
            connection.client_changed()
            self.loop.call_soon(connection.unmute)  # its requests are handled at once

    def wait_for_memory(self, connection: Connection) -> None:
        """Let a connection receive the rest of a long request when there is memory for it."""
        if not self.memory_queue:
            for other in self._open:
                other.release_idle_memory()
        self.memory_queue.append(connection)
        self.serve_memory_queue()

    def serve_memory_queue(self) -> None:
        """Continue requests that wait for memory, in order, while there is memory.

        One of them may exceed the limit: unfinished requests that take all of the memory would
        otherwise wait for each other.
        """
        queue, beyond = self.memory_queue, self._beyond_limit
        if beyond is not None and (beyond.is_closing or not beyond.is_receiving_long_request):
            self._beyond_limit = beyond = None
        while queue:
            connection = queue[0]
            if not (connection.is_closing or connection.receive_on(whatever_others_keep=False)):
                if beyond is not None:
                    return
                connection.receive_on(whatever_others_keep=True)
                self._beyond_limit = beyond = connection
            queue.popleft()

    def close_idle(self) -> None:
        """Close connections that are idle or stalled; release the memory of those idle for now."""
        now = self.loop.time()
        for connection in list(self._open):
            if connection.is_closing:
                if connection.stalled_seconds(now) * 1000 > self.limits.stalled_ms_max:
                    connection.close_now()
                continue
            if self._close_if_stalled(connection, now):
                continue
            if connection.is_busy or connection.is_muted:
                continue
            idle_seconds = now - connection.last_active
            if idle_seconds * 1000 > self.limits.idle_ms_max:
                connection.close_when_answered()
            elif idle_seconds > IDLE_MEMORY_SECONDS:
                connection.release_idle_memory()
        if self.memory_queue:
            self.serve_memory_queue()
        quotas = self.services.throttling.quotas
        if quotas is not None:
            quotas.expire(self.services.clock.monotonic_ms())

    def _close_if_stalled(self, connection: Connection, now: float) -> bool:
        """Close a connection whose client does not read, or does not finish sending a request.

        The second, and the first before it is idle, only while others need the memory.
        """
        limits = self.limits
        stalled_ms = connection.stalled_seconds(now) * 1000
        receiving_ms = connection.receiving_seconds(now) * 1000
        if stalled_ms > limits.idle_ms_max or (
            stalled_ms > limits.stalled_ms_max and self.response_memory.is_short
        ):
            seconds = stalled_ms / 1000
            connection.close_now(f"the client has not read its responses for {seconds:.0f} s")
        elif receiving_ms > limits.stalled_ms_max and self.memory_queue:
            seconds = receiving_ms / 1000
            connection.close_now(f"a request is incomplete after {seconds:.0f} s; memory is short")
        else:
            return False
        return True

    def begin_close(self) -> None:
        """Accept no more connections and requests; those in flight are still answered."""
        self._is_closing = True
        for connection in list(self._open):
            connection.close_when_answered()

    async def close(self, *, grace_seconds: float) -> None:
        """Wait, within the grace, for what is in flight; then close everything."""
        self.begin_close()
        deadline = self.loop.time() + grace_seconds
        while self._open and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self._open):
            connection.close_now()
        await self.tasks.cancel()


def _name_and_version(software: str) -> tuple[str, str]:
    """As Kafka writes them: "unknown" for a client that has not sent them."""
    name, _, version = software.partition(" ")
    return name or "unknown", version or "unknown"
