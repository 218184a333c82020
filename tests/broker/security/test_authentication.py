"""The SASL state of a connection, with a mechanism whose token is the user's name."""

from __future__ import annotations

import pytest

from millstream.broker.security.authentication import Authentication, Authenticator, State
from millstream.errors import ErrorCode, ProtocolError
from millstream.security.exchange import AuthenticationFailed, SaslExchange
from millstream.security.principal import Principal

WALL_MS = 1_700_000_000_000


class NameExchange:
    """Complete with the first token, which is the name; `+name` takes one more token."""

    is_complete = False
    principal: Principal | None = None
    expires_at_ms: int | None = None

    def guess_at(self, token: bytes) -> str | None:
        return None if token.startswith(b"+") else token.decode()

    def respond(self, token: bytes) -> bytes:
        if token == b"wrong":
            raise AuthenticationFailed("no", "a wrong name", "wrong")
        if token.startswith(b"+"):
            return b"more"
        self.is_complete = True
        name, _, seconds = token.decode().partition(" ")
        self.principal = Principal("User", name)
        self.expires_at_ms = WALL_MS + 1000 * int(seconds) if seconds else None
        return b"welcome"


class NameMechanisms:
    def enabled(self, listener: str) -> tuple[str, ...]:
        return ("NAME", "OTHER")

    def begin(self, listener: str, mechanism: str) -> SaslExchange:
        return NameExchange()


def begin(session_ms: int = 0) -> tuple[Authentication, Authenticator]:
    authenticator = Authenticator(NameMechanisms(), lambda listener, mechanism: session_ms)
    return authenticator.begin("SASL_SSL"), authenticator


def authenticated(
    token: bytes = b"ann", session_ms: int = 0
) -> tuple[Authentication, Authenticator]:
    sasl, authenticator = begin(session_ms)
    sasl.handshake(1, "NAME", 0)
    sasl.authenticate(token, 0, WALL_MS)
    return sasl, authenticator


def test_client_authenticates() -> None:
    sasl, authenticator = begin()
    sasl.api_versions()
    assert sasl.handshake(1, "NAME", 0) == (ErrorCode.NONE, ("NAME", "OTHER"))
    assert sasl.authenticate(b"+ann", 0, WALL_MS) == (b"more", 0)
    assert sasl.state is State.TOKENS
    assert sasl.principal is None
    assert sasl.authenticate(b"ann", 0, WALL_MS) == (b"welcome", 0)
    assert sasl.state is State.AUTHENTICATED
    assert sasl.principal == Principal("User", "ann")
    assert not sasl.has_expired(10**15)
    assert authenticator.counters.successful == 1


def test_bare_tokens_follow_the_old_handshake_and_their_sessions_end_too() -> None:
    sasl, _ = begin(session_ms=5000)
    sasl.handshake(0, "NAME", 0)
    assert sasl.state is State.BARE_TOKENS
    assert sasl.authenticate(b"ann 2", 0, WALL_MS) == (b"welcome", 2000)
    assert not sasl.has_expired(2000)
    assert sasl.has_expired(2001)


def test_unknown_mechanism_is_told_those_that_there_are() -> None:
    sasl, authenticator = begin()
    assert sasl.handshake(1, "GSSAPI", 0) == (
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ("NAME", "OTHER"),
    )
    assert sasl.state is State.FAILED
    assert authenticator.counters.failed == 1


def test_failure_is_the_end() -> None:
    sasl, authenticator = begin()
    sasl.handshake(1, "NAME", 0)
    with pytest.raises(AuthenticationFailed):
        sasl.authenticate(b"wrong", 0, WALL_MS)
    assert sasl.state is State.FAILED
    assert authenticator.counters.failed == 1
    with pytest.raises(ProtocolError):
        sasl.authenticate(b"ann", 0, WALL_MS)
    with pytest.raises(ProtocolError):
        sasl.handshake(1, "NAME", 0)


def test_requests_out_of_order_are_refused() -> None:
    sasl, _ = begin()
    with pytest.raises(ProtocolError, match="without SaslHandshake"):
        sasl.authenticate(b"ann", 0, WALL_MS)
    sasl.api_versions()
    with pytest.raises(ProtocolError, match="twice"):
        sasl.api_versions()
    sasl.handshake(1, "NAME", 0)
    with pytest.raises(ProtocolError):
        sasl.api_versions()
    with pytest.raises(ProtocolError):
        sasl.handshake(1, "NAME", 0)


@pytest.mark.parametrize(
    ("token", "session_ms", "lifetime_ms"),
    [
        (b"ann", 5000, 5000),
        (b"ann 3", 5000, 3000),
        (b"ann 9", 5000, 5000),
        (b"ann 9", 0, 9000),
        (b"ann", 0, 0),
    ],
)
def test_session_lasts_as_long_as_the_shorter_of_token_and_limit(
    token: bytes, session_ms: int, lifetime_ms: int
) -> None:
    sasl, authenticator = begin(session_ms)
    sasl.handshake(1, "NAME", 100)
    assert sasl.authenticate(token, 100, WALL_MS) == (b"welcome", lifetime_ms)
    if lifetime_ms:
        assert not sasl.has_expired(100 + lifetime_ms)
        assert sasl.has_expired(101 + lifetime_ms)
        assert authenticator.counters.expired_connections_killed == 1


def test_token_that_has_expired_is_refused() -> None:
    sasl, _ = begin()
    sasl.handshake(1, "NAME", 0)
    with pytest.raises(AuthenticationFailed, match="expired"):
        sasl.authenticate(b"ann -1", 0, WALL_MS)


def test_client_authenticates_again_also_after_its_session_has_ended() -> None:
    sasl, authenticator = authenticated(session_ms=5000)
    assert sasl.may_begin_again(0)
    assert sasl.has_expired(6000)
    assert sasl.handshake(0, "NAME", 6000)[0] is ErrorCode.NONE
    assert sasl.state is State.TOKENS
    sasl.authenticate(b"ann", 6000, WALL_MS)
    assert not sasl.may_begin_again(6999)
    assert sasl.may_begin_again(7000)
    assert not sasl.has_expired(11_000)
    assert sasl.has_expired(11_001)
    assert authenticator.counters.successful_reauthentications == 1
    assert authenticator.counters.successful == 1


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        ("OTHER", b"ann", "mechanism 'OTHER' requested by client is not supported"),
        ("NAME", b"bob", "Cannot change principals"),
        ("NAME", b"wrong", "no"),
    ],
)
def test_client_cannot_become_someone_else(mechanism: str, token: bytes, message: str) -> None:
    sasl, authenticator = authenticated()
    assert sasl.handshake(1, mechanism, 2000)[0] is ErrorCode.NONE
    with pytest.raises(AuthenticationFailed, match=message):
        sasl.authenticate(token, 2000, WALL_MS)
    assert sasl.state is State.FAILED
    assert sasl.principal == Principal("User", "ann")
    assert authenticator.counters.failed_reauthentications == 1
    assert authenticator.counters.failed == 0


def test_mechanism_knows_which_token_is_a_guess() -> None:
    sasl, _ = begin()
    assert sasl.guess_at(b"ann") is None
    sasl.handshake(1, "NAME", 0)
    assert sasl.guess_at(b"+ann") is None
    assert sasl.guess_at(b"ann") == "ann"
