r"""OAUTHBEARER, the server's side (RFC 7628): a bearer token, which someone else has signed.

    client  n,,\x01auth=Bearer <token>\x01[name=value\x01]\x01
    server  (nothing)                        the token is valid
            {"status":"invalid_token"}       it is not: the client answers \x01, and has failed

The `TokenCheck` that is passed in decides what a valid token is (`security/tokens.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from millstream.errors import MillstreamError
from millstream.security.exchange import AuthenticationFailed
from millstream.security.principal import USER_TYPE, Principal

_INVALID_TOKEN = '{"status":"invalid_token"}'
_ACKNOWLEDGED = b"\x01"
_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]+) *", re.IGNORECASE)


class BearerToken(NamedTuple):
    """What a valid token says."""

    user: str
    expires_at_ms: int
    scopes: tuple[str, ...] = ()


class InvalidToken(MillstreamError):
    """The token is not valid; the message, for the log, says why and does not contain it."""


TokenCheck = Callable[[str], BearerToken]  # raises `InvalidToken`


class OauthBearerExchange:
    """One authentication; see `SaslExchange`."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._why_not: str | None = None
        self.is_complete = False
        self.principal: Principal | None = None
        self.expires_at_ms: int | None = None

    def guess_at(self, token: bytes) -> str | None:
        return None  # nobody guesses a signature

    def respond(self, token: bytes) -> bytes:
        if self._why_not is not None:
            said = "" if token == _ACKNOWLEDGED else "; the client went on after the refusal"
            raise AuthenticationFailed(_INVALID_TOKEN, self._why_not + said)
        if self.is_complete:
            raise AuthenticationFailed("Authentication failed: a message after the last one")
        authzid, bearer = _parse(token)
        try:
            valid = self._check(bearer)
        except InvalidToken as error:
            self._why_not = str(error)
            return _INVALID_TOKEN.encode()
        if authzid and authzid != valid.user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from the token's principal name",
                user=valid.user,
            )
        self.is_complete = True
        self.principal = Principal(USER_TYPE, valid.user)
        self.expires_at_ms = valid.expires_at_ms
        return b""


def _parse(token: bytes) -> tuple[str, str]:
    try:
        message = _FIRST.fullmatch(token.decode())
    except UnicodeDecodeError:
        message = None
    if message is None:
        raise AuthenticationFailed("Invalid OAUTHBEARER client first message")
    pairs = [pair.partition("=")[::2] for pair in message["pairs"].split("\x01")[:-1]]
    found = [value for name, value in pairs if name == "auth"]
    if len(found) != 1:
        raise AuthenticationFailed("Invalid OAUTHBEARER client first message: 'auth' not specified")
    bearer = _BEARER.fullmatch(found[0])
    if bearer is None:
        raise AuthenticationFailed(
            "Invalid OAUTHBEARER client first message: 'auth' is not a bearer token"
        )
    return message["authzid"] or "", bearer[1]
