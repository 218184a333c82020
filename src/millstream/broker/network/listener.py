"""A listener: accepts connections at one address, within the limits, and opens them.

An address is checked against the limits before anything else is done for it: a TLS handshake costs
more than a request. A handshake that does not end in time is cut, and each connection gets the
context that is in use when it is accepted, so that certificates can change at any time.

New connections wait in the system's backlog while they come faster than
`max.connection.creation.rate`, and for a second when the process has no more files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.config.broker import Endpoint
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.broker.network.connections import Connections
    from millstream.broker.security.tls import TlsInUse, TlsListener

logger = logging.getLogger("millstream.connection")

ACCEPTED_PER_TURN_MAX = 64
REFUSED_MAX = 1000  # connections that exceed a rate and are not closed yet
RETRY_SECONDS = 1.0  # after accepting has failed
SHUTDOWN_SECONDS = 5.0  # for the client to close its half of TLS
ALERT = "alert"  # attribute of an error: see broker/security/tls.py
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "HTTPS_PROXY_REQUEST")


class Listener:
    """See the module. `bind`, then `start`."""

    def __init__(
        self,
        connections: Connections,
        endpoint: Endpoint,
        *,
        tls: TlsListener | None = None,
        is_shared: bool = False,
    ) -> None:
        """Other processes may listen at a shared address too."""
        self.endpoint = endpoint
        self.tls = tls
        self._connections = connections
        self._loop = connections.loop
        self._is_shared = is_shared
        self._sockets: list[socket.socket] = []
        self._waiting: asyncio.TimerHandle | None = None  # until it accepts again
        self._rate = CreationRate(self._loop.time)
        self._refused: set[socket.socket] = set()  # to be closed in a moment

    @property
    def port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def bind(self) -> None:
        """Take the address, without accepting. Raises `MillstreamError`."""
        host, port = self.endpoint.host, self.endpoint.port
        try:
            found = await self._loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                if self._sockets and port == 0:  # one port for all families
                    address = (address[0], self.port, *address[2:])
                self._bind(family, address)
        except OSError as error:
            self.close()
            raise self._cannot_listen(error) from error

    def _bind(self, family: int, address: Any) -> None:
        try:
            listening = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            if self.endpoint.host:
                raise
            return  # a system without this family
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)

    def start(self) -> None:
        """Accept. Another process may have bound the port as we did; the first that listens has
        it. Raises `MillstreamError`."""
        backlog = self._connections.services.config.socket_listen_backlog_size
        try:
            for listening in self._sockets:
                listening.listen(backlog)
        except OSError as error:
            self.close()
            raise self._cannot_listen(error) from error
        self._resume()

    def close(self) -> None:
        """Accept no more; connections stay open."""
        if self._waiting is not None:
            self._waiting.cancel()
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
                listening.close()
        self._sockets = []
        for refused in self._refused:
            refused.close()

    def _cannot_listen(self, error: OSError) -> MillstreamError:
        where = f"{self.endpoint.host or '*'}:{self.endpoint.port}"
        return MillstreamError(
            f"cannot listen on {where} ({self.endpoint.listener}): {error.strerror or error}"
        )

    # Accepting

    def _resume(self) -> None:
        self._waiting = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _wait(self, seconds: float) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._waiting = self._loop.call_later(seconds, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN_MAX):
            seconds = self._rate.wait_seconds(
                self._connections.services.config.max_connection_creation_rate
            )
            if seconds > 0:
                self._wait(seconds)
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            self._rate.count()
            self._take(accepted, address[0] if address else "local")

    def _cannot_accept(self, error: OSError) -> None:
        """The process has no more files, usually: the loop must not try that all the time."""
        logger.error(
            "no connection can be accepted on %s: %s; trying again in %g s",
            *(self.endpoint.listener, error.strerror or error, RETRY_SECONDS),
        )
        self._wait(RETRY_SECONDS)

    def _take(self, accepted: socket.socket, host: str) -> None:
        delay_ms = self._connections.too_soon_ms(host)
        if delay_ms:
            self._connections.refused_count += 1
            self._close_later(accepted, delay_ms / 1000)
            return
        connection = self._connections.accept(self.endpoint.listener)
        connection.client_host = host
        in_use = None if self.tls is None else self.tls.in_use
        if in_use is not None:
            connection.identify = in_use.identify
        if not self._connections.expect(connection):
            self._connections.refused_count += 1
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.tasks.start(self._open(accepted, connection, in_use))

    def _close_later(self, accepted: socket.socket, seconds: float) -> None:
        """Close what exceeds the rate of its address, after a while, as Kafka does: otherwise its
        client would try again at once."""
        if len(self._refused) >= REFUSED_MAX:
            accepted.close()
            return
        self._refused.add(accepted)

        def close() -> None:
            self._refused.discard(accepted)
            accepted.close()

        self._loop.call_later(seconds, close)

    async def _open(
        self, accepted: socket.socket, connection: Any, in_use: TlsInUse | None
    ) -> None:
        """Make the transport, with a TLS handshake if the listener has TLS."""
        tls: dict[str, Any] = {}
        after_close: socket.socket | None = None
        if in_use is not None:
            limit_ms = self._connections.services.config.millstream_authentication_timeout_ms
            tls = {
                "ssl": in_use.context,
                "ssl_handshake_timeout": limit_ms / 1000,
                "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
            }
        try:
            if tls:
                after_close = accepted.dup()
            await self._loop.connect_accepted_socket(lambda: connection, accepted, **tls)
        except (OSError, ssl.CertificateError) as error:
            accepted.close()
            if after_close is not None:
                self._handshake_failed(connection.client_host, error)
                # The transport has closed itself without it.
                with contextlib.suppress(OSError):
                    after_close.send(getattr(error, ALERT, b""))
        finally:
            if after_close is not None:
                after_close.close()
            self._connections.expect_no_more(connection)

    def _handshake_failed(self, host: str, error: Exception) -> None:
        self._connections.failed_handshakes += 1
        reason, listener = _reason(error), self.endpoint.listener
        logger.warning(
            "connection from %s to %s closed: TLS handshake failed: %s", host, listener, reason
        )
        audit = self._connections.services.audit
        if audit is not None and self.tls is not None and self.tls.in_use.identify is not None:
            from millstream.broker.security.audit import FailedAuthentication

            failed = FailedAuthentication(host, listener, "SSL", None, reason)
            audit.authentication_failed(failed)


class CreationRate:
    """How fast connections are made: not more per second than a limit, and at once up to that."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._full_at = 0.0  # when as many as the limit may come at once again
        self._each = 0.0  # seconds

    def wait_seconds(self, limit: int) -> float:
        """How long the next one has to wait."""
        self._each = 1.0 / max(limit, 1)
        return max(0.0, self._full_at + self._each - 1.0 - self._now())

    def count(self) -> None:
        self._full_at = max(self._full_at, self._now()) + self._each


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NOT_TLS:
            return "the client does not speak TLS"
        return (error.reason or "unknown").replace("_", " ").lower()
    return str(error) or type(error).__name__
