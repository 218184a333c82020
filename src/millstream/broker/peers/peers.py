"""The other brokers of the cluster, as this one reaches them.

    answer = await peers.call(broker_id, "write_txn_markers", {...})

Each `Peer` has one connection, which is opened with the first request and again after it was lost.
After a failed attempt, requests fail at once for a while, which doubles with every further failure;
callers retry. Addresses are those of the metadata, of the listener that brokers use among
themselves. If a broker registers again, or is fenced, its connection is closed at once: requests to
a process that is gone need not wait for their time-outs.

A connection serves its requests in order. Requests that wait for long, such as fetches, go on a
`lane` of their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millstream.broker.peers.connection import PeerConnection, PeerError, api_of
from millstream.broker.peers.login import log_in
from millstream.errors import ConfigError, ErrorCode, ProtocolError
from millstream.protocol.messages import Fields, decode_response, encode_request
from millstream.protocol.wire import Buffer

if TYPE_CHECKING:
    import ssl

    from millstream.broker.metadata.store import MetadataStore
    from millstream.coordination.cluster import BrokerImage, ClusterImage
    from millstream.security.login import Login

TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS_MAX = 5.0
BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 1.0
IN_FLIGHT_MAX = 64
WAITING_MAX = 10_000
API_VERSIONS_VERSION = 3
RENEWED_AT = 0.8  # of the life of a session
CLIENT_ID_PREFIX = "broker-"
SOFTWARE = {"client_software_name": "millstream-broker", "client_software_version": "1"}

Versions = dict[int, tuple[int, int]]


class PeerSecurity(Protocol):
    """TLS and SASL of connections to other brokers."""

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises `ConfigError`. Waits for the disk."""
        ...

    def login(self) -> Login | None:
        """A new one for each connection; None without SASL."""
        ...


class Peer:
    """One other broker. `find_address` returns its host and port, or raises `PeerError`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker_id: int,
        find_address: Callable[[int], tuple[str, int]],
        client_id: str,
        security: PeerSecurity | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._loop = loop
        self._find_address = find_address
        self._client_id = client_id
        self._security = security
        self._renew_at: float | None = None  # when this broker has to log in again
        self._connection: PeerConnection | None = None
        self._versions: Versions = {}
        self._opening: asyncio.Task[PeerConnection] | None = None
        self._failure: str | None = None  # of the last attempt to connect
        self._retry_at = 0.0
        self._backoff_seconds = BACKOFF_SECONDS_MIN
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._waiting = 0  # requests that are not answered
        self._is_closed = False

    async def call(
        self,
        api: str,
        fields: Fields,
        *,
        version: int | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Any:
        """Send a request and return the decoded response; in the newest version that both brokers
        support, unless a version is given. Raises `PeerError`."""
        connection = await self._connected()
        if version is None:
            version = self.version_for(api)
        body = encode_request(api, version, fields)
        answer = await self._send(connection, api, version, body, timeout_seconds)
        try:
            return decode_response(api, version, answer)
        except ProtocolError as error:
            connection.close(str(error))
            raise PeerError(f"{connection.name}: {error}") from error

    async def request(
        self,
        api: str,
        version: int,
        body: bytes | Sequence[Buffer],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> memoryview:
        """Send an encoded request and return the body of its response, which is not copied."""
        connection = await self._connected()
        return await self._send(connection, api, version, body, timeout_seconds)

    async def _send(
        self,
        connection: PeerConnection,
        api: str,
        version: int,
        body: bytes | Sequence[Buffer],
        timeout_seconds: float,
    ) -> memoryview:
        if self._waiting >= WAITING_MAX:
            raise PeerError(f"{connection.name}: {WAITING_MAX} requests wait for it already")
        self._waiting += 1
        try:
            async with self._slots:
                return await connection.send(
                    api_of(api), version, body, timeout_seconds=timeout_seconds
                )
        finally:
            self._waiting -= 1

    def version_for(self, api: str) -> int:
        """The newest version that both brokers support; call it while connected."""
        ours = api_of(api)
        oldest, newest = self._versions.get(ours.key, (0, -1))
        version = min(ours.max_version, newest)
        if version < max(oldest, ours.min_version):
            raise PeerError(f"broker {self.broker_id} has no version of {api} that this one has")
        return version

    def reset(self, reason: str) -> None:
        """The registration of the broker has changed: close the connection, and open another one
        without delay when it is needed."""
        self._backoff_seconds = BACKOFF_SECONDS_MIN
        self._failure = None
        self._retry_at = 0.0
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(reason)

    def close(self) -> None:
        self._is_closed = True
        self.reset("this broker is stopping")

    # Connecting

    async def _connected(self) -> PeerConnection:
        connection = self._connection
        if connection is not None and connection.lost is None:
            if self._renew_at is None or self._loop.time() < self._renew_at:
                return connection
            # A connection that logs in again cannot have requests in flight: open another one.
            self._connection = None
            connection.close_when_answered()
        if self._is_closed:
            raise PeerError("this broker is stopping")
        if self._opening is None:
            if self._failure is not None and self._loop.time() < self._retry_at:
                raise PeerError(self._failure)
            self._opening = self._loop.create_task(self._open())
        opening = self._opening
        try:
            # One caller that is cancelled does not cancel it for the others.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise PeerError(f"broker {self.broker_id} was registered again") from None
            raise

    async def _open(self) -> PeerConnection:
        try:
            connection = await self._connect()
        except PeerError as error:
            self._failure = error.message
            jitter = random.uniform(0.8, 1.2)
            self._retry_at = self._loop.time() + jitter * self._backoff_seconds
            self._backoff_seconds = min(2 * self._backoff_seconds, BACKOFF_SECONDS_MAX)
            self._opening = None
            raise
        self._connection = connection
        self._failure = None
        self._backoff_seconds = BACKOFF_SECONDS_MIN
        self._opening = None
        return connection

    async def _connect(self) -> PeerConnection:
        host, port = self._find_address(self.broker_id)
        name = f"broker {self.broker_id} at {host}:{port}"
        connection = PeerConnection(self._loop, name, self._client_id)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await self._open_transport(connection, host, port)
                self._versions = await self._ask_versions(connection)
                self._renew_at = await self._log_in(connection)
        except TimeoutError:
            connection.close("the connection attempt took too long")
            raise PeerError(f"{name}: no connection after {CONNECT_SECONDS_MAX:g} s") from None
        except OSError as error:
            raise PeerError(f"{name}: cannot connect: {error.strerror or error}") from error
        except ConfigError as error:  # files of certificates that are gone, say
            raise PeerError(f"{name}: cannot connect: {error}") from error
        except BaseException:
            connection.close("the connection attempt was given up")
            raise
        return connection

    async def _open_transport(self, connection: PeerConnection, host: str, port: int) -> None:
        context = None
        if self._security is not None:
            context = await self._loop.run_in_executor(None, self._security.tls_context)
        if context is None:
            await self._loop.create_connection(lambda: connection, host, port)
            return
        await self._loop.create_connection(
            lambda: connection,
            *(host, port),
            ssl=context,
            server_hostname=host,
            ssl_handshake_timeout=CONNECT_SECONDS_MAX,
        )

    async def _log_in(self, connection: PeerConnection) -> float | None:
        """With SASL, if the listener has it. Returns when to do it again."""
        login = None if self._security is None else self._security.login()
        if login is None:
            return None
        began = self._loop.time()
        lifetime_ms = await log_in(connection, login, timeout_seconds=CONNECT_SECONDS_MAX)
        return None if lifetime_ms == 0 else began + RENEWED_AT * lifetime_ms / 1000

    async def _ask_versions(self, connection: PeerConnection) -> Versions:
        """Brokers of different versions run together while a cluster is upgraded."""
        body = encode_request("api_versions", API_VERSIONS_VERSION, SOFTWARE)
        answer = connection.send(
            api_of("api_versions"), API_VERSIONS_VERSION, body, timeout_seconds=CONNECT_SECONDS_MAX
        )
        try:
            response = decode_response("api_versions", API_VERSIONS_VERSION, await answer)
        except ProtocolError as error:
            raise PeerError(f"{connection.name}: {error}") from error
        if response.error_code is not ErrorCode.NONE:
            raise PeerError(f"{connection.name}: refused ApiVersions: {response.error_code!r}")
        return {
            int(api.api_key): (int(api.min_version), int(api.max_version))
            for api in response.api_keys
        }


class Peers:
    """All other brokers. Belongs to the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: MetadataStore,
        broker_id: int,
        listener: str,
        security: PeerSecurity | None = None,
    ) -> None:
        """`listener` is the name of the listener that brokers use among themselves, `security`
        what it needs, if it is not PLAINTEXT."""
        self._security = security
        self._loop = loop
        self._metadata = metadata
        self._broker_id = broker_id
        self._listener = listener
        self._peers: dict[tuple[int, str], Peer] = {}
        self._is_closed = False
        metadata.subscribe(self._metadata_changed)

    def peer(self, broker_id: int, lane: str = "") -> Peer:
        """The broker with this id, which need not be known yet."""
        peer = self._peers.get((broker_id, lane))
        if peer is None:
            client_id = f"{CLIENT_ID_PREFIX}{self._broker_id}" + (f"-{lane}" if lane else "")
            peer = Peer(self._loop, broker_id, self._address, client_id, self._security)
            if self._is_closed:
                peer.close()
            self._peers[broker_id, lane] = peer
        return peer

    async def call(
        self,
        broker_id: int,
        api: str,
        fields: Fields,
        *,
        version: int | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Any:
        """Send a request on the common lane. See `Peer.call`."""
        peer = self.peer(broker_id)
        return await peer.call(api, fields, version=version, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        self._is_closed = True
        for peer in self._peers.values():
            peer.close()

    def _address(self, broker_id: int) -> tuple[str, int]:
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None:
            raise PeerError(f"broker {broker_id} is not registered")
        if broker.fenced:
            raise PeerError(f"broker {broker_id} is not live")
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            raise PeerError(
                f"broker {broker_id} has no listener {self._listener}: brokers need a common "
                "listener (inter.broker.listener.name)"
            )
        return endpoint.host, endpoint.port

    def _metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        if now.brokers is before.brokers:
            return
        for peer in self._peers.values():
            old, new = before.brokers.get(peer.broker_id), now.brokers.get(peer.broker_id)
            if _place(old) != _place(new):
                peer.reset(f"broker {peer.broker_id} was registered again, or fenced")


def _place(broker: BrokerImage | None) -> tuple[Any, ...] | None:
    """Which process it is and where; None if it is not live."""
    if broker is None or broker.fenced:
        return None
    return broker.epoch, broker.incarnation_id, broker.endpoints
