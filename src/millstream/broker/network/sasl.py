"""A connection of a SASL listener: no request reaches a handler before the client is authenticated.

The state is in `broker/security/authentication.py`. Before a client is authenticated, its frames
are short (`sasl.server.max.receive.size`) and its time is limited
(`millstream.authentication.timeout.ms`). A failure is answered after a delay
(`connection.failed.authentication.delay.ms`), and then the connection is closed. After many
failures from one address, its guesses at passwords take turns (`security/attempts.py`), and if too
many wait there, the connection is closed without an answer, so that clients try again. Meanwhile
nothing else of the connection is read. Addresses of `millstream.authentication.delay.exempt` take
no turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

from millstream.broker.network.connection import Connection, ConnectionOwner
from millstream.broker.network.routing import Route
from millstream.broker.security.authentication import Authenticator, State
from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.apis import APIS
from millstream.protocol.headers import API_VERSIONS_KEY, body_start, parse_fixed
from millstream.protocol.sasl import (
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    decode_authenticate,
    decode_handshake,
    encode,
)
from millstream.security.attempts import TooManyFailures
from millstream.security.exchange import AuthenticationFailed

if TYPE_CHECKING:
    from millstream.broker.network.metering import QuotaMeter
    from millstream.broker.security.tls import Identify
    from millstream.broker.services import RequestContext
    from millstream.config.broker import BrokerConfig
    from millstream.protocol.apis import Api

logger = logging.getLogger("millstream.security")

_LENGTH = Struct(">i")


RESERVED_BYTES = 4096  # at first, for a frame before authentication


class SaslConnection(Connection):
    """See the module."""

    def __init__(
        self,
        connections: ConnectionOwner,
        listener: str,
        connection_id: int,
        authenticator: Authenticator,
    ) -> None:
        super().__init__(connections, listener, connection_id)
        self._authenticator = authenticator
        self._sasl = authenticator.begin(listener)
        self._is_waiting = False  # for its turn, or with the answer to a failure
        self._timer: asyncio.TimerHandle | None = None
        self._mechanism = ""  # as the client wrote it, for logs
        self._user: str | None = None  # who could not log in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.is_closing:
            return
        self._frames.limit(
            self._token_bytes_max,
            "sasl.server.max.receive.size",
            reserved_bytes=RESERVED_BYTES,  # a stranger may say that much will come
        )
        self._limit_time()

    @property
    def _config(self) -> BrokerConfig:
        return self._connections.services.config

    @property
    def _token_bytes_max(self) -> int:
        return self._config.listener_settings(self._listener).sasl_server_max_receive_size

    def _limit_time(self) -> None:
        seconds = self._config.millstream_authentication_timeout_ms / 1000
        self._timer = self._loop.call_later(seconds, self._not_in_time, seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._sasl.close()
        super().connection_lost(error)

    def _take_principal(self, identify: Identify) -> None:
        """SASL decides who the client is, also if it has shown a certificate."""

    def _not_in_time(self, seconds: float) -> None:
        self._timer = None
        self.abort(f"the client is not authenticated after {seconds:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_blocked(self) -> bool:
        if not super()._check_blocked() and self._is_waiting:
            self._is_blocked = True
        return self._is_blocked

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # Requests

    def _handle(self, frame: memoryview) -> None:
        sasl = self._sasl
        if sasl.state is State.AUTHENTICATED:
            key = frame[0] << 8 | frame[1] if len(frame) >= 2 else -1
            if key == HANDSHAKE_KEY and sasl.may_begin_again(self._now_ms()):
                self._handle_sasl(frame)
            elif sasl.ends_at_ms is not None and sasl.has_expired(self._now_ms()):
                self.abort("the session has ended and the client has not authenticated again")
            else:
                super()._handle(frame)
        elif sasl.state is State.BARE_TOKENS:
            self._handle_bare_token(bytes(frame))
        else:
            self._handle_sasl(frame)

    def _handle_sasl(self, frame: memoryview) -> None:
        api_key, version, correlation_id, client_end = parse_fixed(frame)
        if api_key == API_VERSIONS_KEY and not self._sasl.is_again:
            self._handle_api_versions(frame, version)
            return
        if api_key not in (HANDSHAKE_KEY, AUTHENTICATE_KEY):
            raise ProtocolError(f"API {api_key} came before the client was authenticated")
        key = (api_key, version, frame[8:client_end].tobytes())
        route = self._routes.get(key) or self._new_route(key, frame, correlation_id, client_end)
        assert route is not None  # only ApiVersions is answered in other versions
        body = frame[body_start(frame, client_end, flexible=route.flexible_request) :]
        if api_key == HANDSHAKE_KEY:
            self._handshake(route, correlation_id, decode_handshake(body), version)
        else:
            self._authenticate(route, correlation_id, decode_authenticate(version, body))

    def _handle_api_versions(self, frame: memoryview, version: int) -> None:
        api = APIS[API_VERSIONS_KEY]
        if api.min_version <= version <= api.max_version:
            self._sasl.api_versions()  # the answer to other versions names ours
        super()._handle(frame)

    def _handshake(self, route: Route, correlation_id: int, mechanism: str, version: int) -> None:
        self._mechanism = ascii(mechanism[:40])[1:-1]
        code, enabled = self._sasl.handshake(version, mechanism, self._now_ms())
        answer = {"error_code": code, "mechanisms": enabled}
        if code is ErrorCode.NONE:
            self._reply(route, correlation_id, answer)
        else:
            reason = f"mechanism {self._mechanism} is not enabled"
            self._refuse(reason, route, correlation_id, answer)

    def _authenticate(self, route: Route, correlation_id: int, token: bytes) -> None:
        def respond() -> None:
            try:
                answer, lifetime_ms = self._respond(token)
            except AuthenticationFailed as error:
                self._user = error.user
                self._refuse(_described(error), route, correlation_id, _refusal(error.message))
                return
            fields = {
                "error_code": ErrorCode.NONE,
                "auth_bytes": answer,
                "session_lifetime": lifetime_ms,
            }
            self._reply(route, correlation_id, fields)

        self._in_turn(token, respond)

    def _handle_bare_token(self, token: bytes) -> None:
        """Of clients before Kafka 1.0. There is no answer to say that it failed."""

        def respond() -> None:
            try:
                answer, _ = self._respond(token)
            except AuthenticationFailed as error:
                self._user = error.user
                self._refuse(_described(error))
                return
            self._out += (_LENGTH.pack(len(answer)), answer)
            self._out_bytes += len(answer)
            self._waiting_bytes += len(answer)

        self._in_turn(token, respond)

    def _in_turn(self, token: bytes, respond: Callable[[], None]) -> None:
        """Respond to a token: at once, or when it is the turn of this client."""
        if len(token) > self._token_bytes_max:  # frames may be longer while it authenticates again
            raise ProtocolError(f"a token of {len(token)} bytes (sasl.server.max.receive.size)")
        wait_ms = 0
        user = self._sasl.guess_at(token)
        if user is not None and self.client_host not in self._config.authentication_delay_exempt:
            try:
                attempts = self._authenticator.attempts
                wait_ms = attempts.wait_ms(self.client_host, user, self._now_ms())
            except TooManyFailures:
                self._user = user
                self._sasl.fail()
                self._refuse("too many authentications from this address have failed")
                return
        if wait_ms == 0:
            respond()
        else:
            self._wait(wait_ms, partial(self._respond_in_turn, respond))

    def _respond_in_turn(self, respond: Callable[[], None]) -> None:
        self._is_waiting = False
        if not self._sasl.is_again:
            self._limit_time()
        try:
            respond()
        except ProtocolError as error:
            self.abort(str(error))
        except Exception:  # a bug must not affect other connections
            logger.exception("an authentication from %s failed", self.client_host)
            self.abort("unexpected error; see above")
        self._write_out()
        self._resume()

    def _respond(self, token: bytes) -> tuple[bytes, int]:
        sasl, attempts = self._sasl, self._authenticator.attempts
        wall_ms = self._connections.services.clock.now_ms()
        user = sasl.guess_at(token)
        try:
            answer, lifetime_ms = sasl.authenticate(token, self._now_ms(), wall_ms)
        except AuthenticationFailed:
            if user is not None:
                attempts.failed(self.client_host, user, self._now_ms())
            raise
        if sasl.state is State.AUTHENTICATED and sasl.principal is not None:
            self._stop_timer()
            if user is not None:
                attempts.succeeded(self.client_host, user, self._now_ms())
            self._client.principal = sasl.principal
            self.client_changed()
            self._frames.limit(self._limits.frame_bytes_max)
        return answer, lifetime_ms

    def _quota_meter(self, api: Api, context: RequestContext) -> QuotaMeter | None:
        """Only of users: strangers would choose client ids for which usages are kept."""
        return super()._quota_meter(api, context) if self._sasl.is_again else None

    def _reply(self, route: Route, correlation_id: int, fields: dict[str, Any]) -> None:
        body = encode(route.api.key, route.context.api_version, fields)
        self._answer(correlation_id, route.flexible_response, body)

    # Waiting

    def _wait(self, ms: int, then: Callable[[], None]) -> None:
        """Do something later, and read nothing until then."""
        self._stop_timer()
        self._is_waiting = self._is_blocked = True
        self._pause_reading()
        self._timer = self._loop.call_later(ms / 1000, self._go_on, then)

    def _go_on(self, then: Callable[[], None]) -> None:
        self._timer = None
        if not self.is_closing:
            then()

    def _refuse(
        self,
        reason: str,
        route: Route | None = None,
        correlation_id: int = 0,
        fields: dict[str, Any] | None = None,
    ) -> None:
        """Answer later, then close."""
        logger.warning(
            "connection from %s to %s: authentication failed: %s",
            *(self.client_host, self._listener, reason),
        )
        self._audit_failure(self._mechanism, self._user, reason)

        def close() -> None:
            if route is not None and fields is not None:
                self._reply(route, correlation_id, fields)
            self.close_when_answered()

        self._wait(self._config.connection_failed_authentication_delay_ms, close)


def _refusal(message: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
        "error_message": message,
        "auth_bytes": b"",
    }


def _described(error: AuthenticationFailed) -> str:
    """For the log: names come from the client, so they are short and on one line."""
    return error.reason if error.user is None else f"{error.reason} (user {error.user[:80]!a})"
