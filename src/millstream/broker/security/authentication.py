"""The SASL state of a connection: which request may come next, and what its answer is.

    ApiVersions (once) -> SaslHandshake v1 -> SaslAuthenticate ... -> authenticated
                          SaslHandshake v0 -> tokens without Kafka's headers -> authenticated
    authenticated      -> SaslHandshake    -> SaslAuthenticate ... -> authenticated (KIP-368)

Any other request before a client is authenticated is an error. A session ends with the client's
token, or after `connections.max.reauth.ms`: by then the client has to authenticate again, by the
same mechanism and as the same principal, or its next request closes the connection. Sessions of
clients that send tokens without headers end too, as in Kafka.

Without sockets; the time is passed in. `broker/network/sasl.py` is the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from millstream.errors import ErrorCode, ProtocolError
from millstream.security.attempts import FailedAttempts
from millstream.security.exchange import AuthenticationFailed, SaslExchange
from millstream.security.principal import Principal

REAUTHENTICATION_MS_MIN = 1000  # between two of them, as in Kafka


class FindMechanisms(Protocol):
    """See `broker/security/mechanisms.py`."""

    def enabled(self, listener: str) -> tuple[str, ...]: ...

    def begin(self, listener: str, mechanism: str) -> SaslExchange: ...


class AuthenticationCounters:
    """How often clients have authenticated, over all connections."""

    __slots__ = (
        "expired_connections_killed",
        "failed",
        "failed_reauthentications",
        "successful",
        "successful_reauthentications",
    )

    def __init__(self) -> None:
        self.successful = 0
        self.failed = 0
        self.successful_reauthentications = 0
        self.failed_reauthentications = 0
        self.expired_connections_killed = 0


class State(Enum):
    BEFORE = "before"  # ApiVersions or SaslHandshake
    HANDSHAKE = "handshake"  # SaslHandshake
    TOKENS = "tokens"  # SaslAuthenticate
    BARE_TOKENS = "bare tokens"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


class Authentication:
    """See the module. One for each connection of a SASL listener."""

    def __init__(
        self,
        mechanisms: FindMechanisms,
        counters: AuthenticationCounters,
        listener: str,
        session_ms_of: Callable[[str], int],
    ) -> None:
        """`session_ms_of` returns connections.max.reauth.ms of a mechanism; 0 is for ever."""
        self.state = State.BEFORE
        self.principal: Principal | None = None
        self.ends_at_ms: int | None = None  # monotonic: when the session ends
        self._mechanisms = mechanisms
        self._counters = counters
        self._listener = listener
        self._session_ms_of = session_ms_of
        self._mechanism = ""
        self._wrong_mechanism: str | None = None  # what it tried to authenticate again with
        self._exchange: SaslExchange | None = None
        self._began_again_at_ms: int | None = None  # monotonic

    @property
    def is_again(self) -> bool:
        """Whether the client was authenticated before."""
        return self.principal is not None

    def close(self) -> None:
        """The connection has ended: keep nothing of what the client has sent."""
        self._exchange = None

    def api_versions(self) -> None:
        """Raises `ProtocolError` if it comes twice."""
        if self.state is not State.BEFORE:
            raise ProtocolError("ApiVersions came twice before authentication")
        self.state = State.HANDSHAKE

    def may_begin_again(self, now_ms: int) -> bool:
        """As in Kafka: only if the session has an end, and not twice in a second."""
        last_ms = self._began_again_at_ms
        if self.ends_at_ms is None:
            return False
        return last_ms is None or now_ms - last_ms >= REAUTHENTICATION_MS_MIN

    def handshake(
        self, version: int, mechanism: str, now_ms: int
    ) -> tuple[ErrorCode, tuple[str, ...]]:
        """The answer to SaslHandshake: a code, and the mechanisms that the listener has."""
        if self.state not in (State.BEFORE, State.HANDSHAKE, State.AUTHENTICATED):
            raise ProtocolError("SaslHandshake came while the client authenticates")
        enabled = self._mechanisms.enabled(self._listener)
        if mechanism not in enabled:
            self.fail()
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled
        if self.is_again and mechanism != self._mechanism:
            self._wrong_mechanism = mechanism  # SaslAuthenticate fails then, as in Kafka
        else:
            self._exchange = self._mechanisms.begin(self._listener, mechanism)
            self._mechanism = mechanism
        if self.is_again:
            self._began_again_at_ms = now_ms
        is_bare = version == 0 and not self.is_again
        self.state = State.BARE_TOKENS if is_bare else State.TOKENS
        return ErrorCode.NONE, enabled

    def guess_at(self, token: bytes) -> str | None:
        """At whose password the next token may be a guess; see `SaslExchange`."""
        return None if self._exchange is None else self._exchange.guess_at(token)

    def authenticate(self, token: bytes, now_ms: int, wall_ms: int) -> tuple[bytes, int]:
        """The answer to a token, and for how long the session lasts once it is complete (ms; 0 is
        for ever). Raises `AuthenticationFailed`, and `ProtocolError` if no token may come now."""
        if self.state not in (State.TOKENS, State.BARE_TOKENS):
            raise ProtocolError("SaslAuthenticate came without SaslHandshake")
        try:
            return self._authenticate(token, now_ms, wall_ms)
        except AuthenticationFailed:
            self.fail()
            raise

    def fail(self) -> None:
        """Nothing more is accepted."""
        self.state = State.FAILED
        if self.is_again:
            self._counters.failed_reauthentications += 1
        else:
            self._counters.failed += 1

    def _authenticate(self, token: bytes, now_ms: int, wall_ms: int) -> tuple[bytes, int]:
        exchange = self._exchange
        if self._wrong_mechanism is not None:
            raise AuthenticationFailed(
                f"SASL mechanism '{self._wrong_mechanism}' requested by client is not supported "
                f"for re-authentication of mechanism '{self._mechanism}'"
            )
        assert exchange is not None
        answer = exchange.respond(token)
        if not exchange.is_complete:
            return answer, 0
        assert exchange.principal is not None
        if self.principal is not None and exchange.principal != self.principal:
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication",
                f"cannot change from {self.principal} to {exchange.principal} while authenticating "
                "again",
            )
        lifetime_ms = self._lifetime_ms(exchange, wall_ms)
        if lifetime_ms is not None and lifetime_ms <= 0:
            raise AuthenticationFailed("The token has expired")
        self._complete(exchange.principal)
        self.ends_at_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        self.state = State.AUTHENTICATED
        return answer, lifetime_ms or 0

    def _lifetime_ms(self, exchange: SaslExchange, wall_ms: int) -> int | None:
        limits = []
        if (most_ms := self._session_ms_of(self._mechanism)) > 0:
            limits.append(most_ms)
        if exchange.expires_at_ms is not None:
            limits.append(exchange.expires_at_ms - wall_ms)
        return min(limits, default=None)

    def _complete(self, principal: Principal) -> None:
        if self.is_again:
            self._counters.successful_reauthentications += 1
        else:
            self._counters.successful += 1
        self.principal = principal
        self._exchange = None

    def has_expired(self, now_ms: int) -> bool:
        """Whether a request closes the connection now, unless it is SaslHandshake."""
        if self.ends_at_ms is None or now_ms <= self.ends_at_ms:
            return False
        self._counters.expired_connections_killed += 1
        return True


class Authenticator:
    """What the authentications of one broker share."""

    def __init__(
        self,
        mechanisms: FindMechanisms,
        session_ms_of: Callable[[str, str], int],
    ) -> None:
        """`session_ms_of` returns connections.max.reauth.ms of a listener and mechanism."""
        self._mechanisms = mechanisms
        self._session_ms_of = session_ms_of
        self.attempts = FailedAttempts()
        self.counters = AuthenticationCounters()

    def begin(self, listener: str) -> Authentication:
        """For a new connection."""
        return Authentication(
            self._mechanisms,
            self.counters,
            listener,
            lambda mechanism: self._session_ms_of(listener, mechanism),
        )
