"""PLAIN, the server's side (RFC 4616): `authzid NUL user NUL password`, in one message.

The password travels as it is, so this is for listeners with TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from millstream.security.exchange import AuthenticationFailed
from millstream.security.principal import USER_TYPE, Principal


class PlainExchange:
    """One authentication; see `SaslExchange`."""

    expires_at_ms: int | None = None

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.is_complete = False
        self.principal: Principal | None = None

    def guess_at(self, token: bytes) -> str | None:
        try:
            return _parse(token)[1]
        except AuthenticationFailed:
            return None

    def respond(self, token: bytes) -> bytes:
        if self.is_complete:
            raise AuthenticationFailed("Authentication failed: a message after the last one")
        authzid, user, password = _parse(token)
        known = self._passwords.get(user)
        is_right = is_same_secret(password, "" if known is None else known)
        if known is None or not is_right:
            why = "no such user" if known is None else "wrong password"
            raise AuthenticationFailed(
                "Authentication failed: Invalid username or password", why, user
            )
        if authzid and authzid != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username",
                user=user,
            )
        self.is_complete = True
        self.principal = Principal(USER_TYPE, user)
        return b""


def is_same_secret(one: str, other: str) -> bool:
    """In a time that depends on neither."""
    return hmac.compare_digest(
        hashlib.sha256(one.encode()).digest(), hashlib.sha256(other.encode()).digest()
    )


def _parse(token: bytes) -> tuple[str, str, str]:
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailed(
            f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
        )
    authzid, user, password = parts
    if not user:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified", user=user)
    return authzid, user, password
