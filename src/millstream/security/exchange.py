"""The server's side of a SASL exchange: tokens in, tokens out, and in the end a principal.

An exchange knows nothing of connections. The connection passes it each token that the client sends
and returns the answer, until it is complete or fails:

    exchange = mechanisms.begin(listener, "SCRAM-SHA-256")
    answer = exchange.respond(token)
    if exchange.is_complete: client.principal = exchange.principal
"""

from __future__ import annotations

from typing import Protocol

from millstream.errors import MillstreamError, ProtocolError
from millstream.security.principal import Principal

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"  # SCRAM's names are in `scram`


class SaslExchange(Protocol):
    """One authentication of one client."""

    @property
    def is_complete(self) -> bool:
        """Whether the client is authenticated."""
        ...

    @property
    def principal(self) -> Principal | None:
        """Who the client is, once complete."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When the credential itself expires (a token's `exp`), once complete."""
        ...

    def guess_at(self, token: bytes) -> str | None:
        """At whose password this token, which comes next, may be a guess; None if at nobody's."""
        ...

    def respond(self, token: bytes) -> bytes:
        """The answer to the client's token. Raises `AuthenticationFailed`."""
        ...


class AuthenticationFailed(MillstreamError):
    """The client is not who it says, or does not follow the mechanism.

    `message` is for the client and does not say whether a user exists; `reason` is for the log.
    Neither contains secrets. `user` is the name that was tried, if it was sent.
    """

    def __init__(self, message: str, reason: str | None = None, user: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = message if reason is None else reason
        self.user = user


class AuthenticationUnavailable(ProtocolError):
    """Nobody can say at the moment who the client is. Its connection is closed without an answer:
    clients try again then, while they give up when they are refused."""


def wrong_credentials(mechanism: str, reason: str, user: str | None = None) -> AuthenticationFailed:
    """The same words for an unknown user and for a wrong password."""
    return AuthenticationFailed(
        f"Authentication failed during authentication due to invalid credentials with SASL "
        f"mechanism {mechanism}",
        reason,
        user,
    )
