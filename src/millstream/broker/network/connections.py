"""All connections of a broker: admission, limits, idle time, and what they share."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker.network.connection import Connection, ConnectionLimits, FindHandler
from millstream.broker.tasks import Tasks
from millstream.protocol.framing import ReceiveBuffer

if TYPE_CHECKING:
    from millstream.broker.services import Services

logger = logging.getLogger("millstream.connection")

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
        self.receive_buffer = ReceiveBuffer()
        self.on_close: list[Callable[[int], None]] = []  # called with the id of a closed connection
        self._ids = itertools.count()
        self._open: set[Connection] = set()
        self._per_host: Counter[str] = Counter()
        self.tasks = Tasks(services.loop)
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, listener: str) -> Connection:
        """The protocol for a connection that is about to be made."""
        return Connection(self, listener, next(self._ids))

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay; says in the log why not."""
        host = connection.client_host
        if self._is_closing:
            return False
        config = self.services.config
        if len(self._open) >= config.max_connections:
            logger.warning("connection from %s refused: max.connections are open", host)
            return False
        if self._per_host[host] >= config.max_connections_per_ip:
            logger.warning("connection from %s refused: max.connections.per.ip are open", host)
            return False
        self._open.add(connection)
        self._per_host[host] += 1
        self.services.load.connection_count += 1
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self.services.load.connection_count -= 1
            self._per_host[connection.client_host] -= 1
            if not self._per_host[connection.client_host]:
                del self._per_host[connection.client_host]
            for callback in self.on_close:
                callback(connection.id)

    def unsupported_version_answer(self) -> bytes:
        """What ApiVersions in a version of the future is answered."""
        from millstream.broker.handlers.api_versions import encode_unsupported_version

        return encode_unsupported_version()

    def close_idle(self) -> None:
        """Close what was quiet for too long, and take memory back from what is quiet just now."""
        now = self.loop.time()
        for connection in list(self._open):
            quiet_seconds = now - connection.last_active
            if connection.requests_in_flight:
                continue
            if quiet_seconds * 1000 > self.limits.idle_ms_max:
                connection.close_when_answered()
            elif quiet_seconds > IDLE_MEMORY_SECONDS:
                connection.release_idle_memory()

    def begin_close(self) -> None:
        """Take no more connections and requests; those in flight are still answered."""
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
