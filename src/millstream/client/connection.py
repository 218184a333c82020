"""One connection to one broker: requests out, responses in, in order.

    with Connection(("localhost", 9092)) as connection:
        answer = connection.call("metadata", {"topics": None})

`call` uses the newest version that both sides support, by default. `send` and `receive` are its two
halves, for several requests in flight. Where a broker limits the life of a session, the connection
authenticates again before it is over.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, Self

from millstream.client.security import Security
from millstream.errors import ApiError, ConfigError, ErrorCode, ProtocolError
from millstream.protocol.apis import APIS
from millstream.protocol.messages import (
    Fields,
    decode_response,
    encode_request,
    is_flexible,
)
from millstream.protocol.wire import INT32, skip_tags

API_KEYS = {api.name: api.key for api in APIS.values()} | {
    "sasl_handshake": 17,
    "sasl_authenticate": 36,
}
FRAME_BYTES_MAX = 2**31 - 1
API_VERSIONS_VERSION = 3
SASL_HANDSHAKE_VERSION = 1
SASL_AUTHENTICATE_VERSION = 2
# The part of a session's life after which to authenticate again: not all connections at once.
RENEWAL_SHARE = (0.85, 0.95)

_HEADER = struct.Struct(">hhih")
_TLS_MISTAKES = {
    "CERTIFICATE_VERIFY_FAILED": "the broker's certificate is not trusted, or is another host's; "
    "set ssl.ca.location to the certificates that you trust",
    "WRONG_VERSION_NUMBER": "the broker does not use TLS at this address; use its TLS listener, "
    "or another security.protocol",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker wants a certificate of its clients; set "
    "ssl.certificate.location and ssl.key.location",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker wants a certificate of its clients that it trusts; "
    "set ssl.certificate.location and ssl.key.location",
}


_LISTENER_HINT = "a listener that expects TLS does so (security.protocol), and a broker that stops"
_CERTIFICATE_HINT = (
    "a listener that wants a certificate of its clients does so (ssl.certificate.location), and a "
    "broker that stops"
)
_NO_TLS_HINT = "a listener without TLS does so (security.protocol), and a broker that stops"


class ConnectionLost(OSError):
    """The broker closed the connection with requests in flight."""


class _InFlight(NamedTuple):
    api: str
    version: int
    correlation_id: int


class Connection:
    """See the module. Raises `OSError` (also for timeouts) when the broker cannot be reached."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        client_id: str = "millstream",
        security: Security | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        self.address = address
        self._client_id = client_id.encode()
        self._security = security or Security()
        self._correlation_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._received: deque[memoryview] = deque()  # responses to the oldest of these
        self._renew_at: float | None = None  # when to authenticate again
        try:
            self._socket = self._connect(timeout_seconds)
            self._begin()
        except ssl.SSLError as error:
            where = f"{address[0]}:{address[1]}"
            if error.reason in _TLS_MISTAKES:
                # Not a network error, so not retriable.
                what = _TLS_MISTAKES[error.reason]
                raise ConfigError(f"{where}: {error.reason}: {what}") from error
            raise ConnectionLost(f"{where} ended TLS ({error.reason}); {_NO_TLS_HINT}") from error

    def _connect(self, timeout_seconds: float) -> socket.socket:
        raw = socket.create_connection(self.address, timeout_seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._security.uses_tls:
            return raw
        try:
            return self._security.tls_context().wrap_socket(raw, server_hostname=self.address[0])
        except BaseException:
            raw.close()
            raise

    def _begin(self) -> None:
        try:
            self.versions = self._ask_versions()
            if self._security.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_idle(self) -> bool:
        """Whether no requests are in flight, so that others may use the connection."""
        return not self._in_flight

    # Requests and responses

    def call(self, api: str, fields: Fields, *, version: int | None = None) -> Any:
        """Send a request and wait for its response."""
        if version is None:
            version = self.version_for(api)
        self.send_fields(api, version, fields)
        return self.receive()

    def version_for(self, api: str, *, newest: int | None = None) -> int:
        """The newest version that this client and the broker support."""
        key = API_KEYS[api]
        ours = APIS[key].max_version if newest is None else newest
        if key not in self.versions:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address[0]}:{self.address[1]} does not support {api}",
            )
        lowest, highest = self.versions[key]
        version = min(ours, highest)
        if version < lowest:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"no common version of {api}: the broker supports {lowest} and later, this client "
                f"up to {ours}",
            )
        return version

    def send(self, api: str, version: int, body: bytes | memoryview | list[Any]) -> None:
        """Send a request whose body is encoded already, whole or in pieces."""
        if self._renew_at is not None and time.monotonic() >= self._renew_at:
            self._renew()
        self._send(api, version, body)

    def _send(self, api: str, version: int, body: bytes | memoryview | list[Any]) -> None:
        pieces = body if isinstance(body, list) else [body]
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = (
            _HEADER.pack(API_KEYS[api], version, self._correlation_id, len(self._client_id))
            + self._client_id
        )
        if is_flexible(api, version):
            header += b"\0"
        size = len(header) + sum(len(piece) for piece in pieces)
        self._in_flight.append(_InFlight(api, version, self._correlation_id))
        self._send_all([INT32.pack(size) + header, *pieces])

    def send_fields(self, api: str, version: int, fields: Fields) -> None:
        """Send a request, and `receive` its response later."""
        self.send(api, version, encode_request(api, version, fields))

    def receive(self) -> Any:
        """The response to the oldest request in flight, decoded."""
        waiting = self._in_flight[0]
        return decode_response(waiting.api, waiting.version, self.receive_body())

    def receive_body(self) -> memoryview:
        """The body of the response to the oldest request in flight."""
        waiting = self._in_flight[0]
        frame = self._received.popleft() if self._received else self._receive_frame()
        self._in_flight.popleft()  # not earlier: a retry on a lost connection must fail
        (correlation_id,) = INT32.unpack_from(frame)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(
                f"the broker answered request {correlation_id}, not {waiting.correlation_id}"
            )
        # ApiVersions' response header has no tagged fields, whatever its version.
        if waiting.api != "api_versions" and is_flexible(waiting.api, waiting.version):
            return frame[skip_tags(frame, 4) :]
        return frame[4:]

    def _send_all(self, pieces: list[Any]) -> None:
        if len(pieces) > 2 and not isinstance(self._socket, ssl.SSLSocket):
            sent = self._socket.sendmsg(pieces)
            rest = memoryview(b"".join(pieces))[sent:] if sent < sum(map(len, pieces)) else b""
        else:
            rest = b"".join(pieces)
        if rest:
            self._socket.sendall(rest)

    def _receive_frame(self) -> memoryview:
        (size,) = INT32.unpack_from(self._receive_exactly(4))
        if size < 4:
            raise ProtocolError(f"the broker announced a response of {size} bytes")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> memoryview:
        content = memoryview(bytearray(size))
        received = 0
        while received < size:
            count = self._socket.recv_into(content[received:])
            if count == 0:
                raise ConnectionLost(f"{self.address[0]}:{self.address[1]} closed the connection")
            received += count
        return content

    # Setting up a connection

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        software = {"client_software_name": "millstream", "client_software_version": "1"}
        try:
            answer = self.call("api_versions", software, version=API_VERSIONS_VERSION)
        except ConnectionLost as lost:
            hint = _CERTIFICATE_HINT if self._security.uses_tls else _LISTENER_HINT
            raise ConnectionLost(f"{lost} at the first request; {hint}") from None
        if answer.error_code is not ErrorCode.NONE:
            raise ApiError(answer.error_code, "the broker does not support ApiVersions")
        self.features: dict[str, int] = {
            feature.name: feature.max_version_level for feature in answer.finalized_features
        }
        return {
            int(api.api_key): (int(api.min_version), int(api.max_version))
            for api in answer.api_keys
        }

    def _authenticate(self) -> None:
        security = self._security
        login = security.login()
        answer = self._ask_sasl(
            "sasl_handshake", SASL_HANDSHAKE_VERSION, {"mechanism": login.mechanism}
        )
        if answer.error_code is not ErrorCode.NONE:
            offered = ", ".join(answer.mechanisms)
            raise ApiError(
                answer.error_code,
                f"the broker does not support SASL mechanism {login.mechanism}; it offers "
                f"{offered or 'none'}",
            )
        version = min(SASL_AUTHENTICATE_VERSION, self.versions[API_KEYS["sasl_authenticate"]][1])
        token: bytes | None = login.begin()
        while token is not None:
            answer = self._ask_sasl("sasl_authenticate", version, {"auth_bytes": token})
            if answer.error_code is not ErrorCode.NONE:
                if security.tokens is not None:
                    security.tokens.forget()
                raise ApiError(answer.error_code, answer.error_message or "not authenticated")
            token = login.respond(answer.auth_bytes)
        self._renew_at = None
        if version > 0 and answer.session_lifetime:
            life = answer.session_lifetime.total_seconds()
            self._renew_at = time.monotonic() + life * random.uniform(*RENEWAL_SHARE)

    def _ask_sasl(self, api: str, version: int, fields: Fields) -> Any:
        self._send(api, version, encode_request(api, version, fields))
        return self.receive()

    def _renew(self) -> None:
        """Authenticate again, after the responses to all requests in flight: they are kept."""
        while len(self._received) < len(self._in_flight):
            self._received.append(self._receive_frame())
        waiting, received = self._in_flight, self._received
        self._in_flight, self._received = deque(), deque()
        try:
            self._authenticate()
        finally:
            self._in_flight, self._received = waiting, received
