"""The client's side of SASL's DIGEST-MD5 (RFC 2831), with which brokers log in to ZooKeeper.

The mechanism is obsolete, and its hash is weak: use it over TLS. Brokers accept it from nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

from millstream.security.exchange import AuthenticationFailed

DIGEST_MD5 = "DIGEST-MD5"

_NONCE_COUNT = "00000001"  # a challenge is answered once
_DIRECTIVE = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')


class DigestMd5Login:
    """One authentication; the server speaks first. It cannot be used twice."""

    mechanism = DIGEST_MD5

    def __init__(
        self,
        username: str,
        password: str,
        *,
        service: str,
        host: str,
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._username = username
        self._password = password
        self._uri = f"{service}/{host}"
        self._realm = host  # unless the server names another one
        self._nonce = new_nonce()
        self._proof: str | None = None  # the server's, once we know it

    def begin(self) -> bytes:
        return b""

    def respond(self, challenge: bytes) -> bytes | None:
        """The next token, None when complete. Raises `AuthenticationFailed`."""
        directives = _parse(challenge)
        if self._proof is None:
            return self._answer(directives)
        proof = directives.get("rspauth", "")
        if not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise _failed("the server does not know the password: it may be an impostor")
        return None

    def _answer(self, challenge: dict[str, str]) -> bytes:
        nonce = challenge.get("nonce")
        if not nonce or challenge.get("algorithm", "md5-sess").lower() != "md5-sess":
            raise _failed("the server's challenge is not that of DIGEST-MD5")
        if "auth" not in re.split(r"[\s,]+", challenge.get("qop", "auth")):
            raise _failed("the server wants to encrypt by SASL: use TLS")
        realm = challenge.get("realm", self._realm)
        secret = b":".join(map(_encoded, (self._username, realm, self._password)))
        session = _md5(secret) + f":{nonce}:{self._nonce}".encode()

        def value(method: str) -> str:
            middle = f"{nonce}:{_NONCE_COUNT}:{self._nonce}:auth"
            of_uri = _md5(f"{method}:{self._uri}".encode()).hex()
            return _md5(f"{_md5(session).hex()}:{middle}:{of_uri}".encode()).hex()

        self._proof = value("")
        return (
            f'charset=utf-8,username="{_quoted(self._username)}",realm="{_quoted(realm)}",'
            f'nonce="{_quoted(nonce)}",nc={_NONCE_COUNT},cnonce="{self._nonce}",'
            f'digest-uri="{self._uri}",maxbuf=65536,response={value("AUTHENTICATE")},qop=auth'
        ).encode()


def _parse(token: bytes) -> dict[str, str]:
    text = token.decode("utf-8", "replace")
    found: dict[str, str] = {}
    place = 0
    while place < len(text):
        directive = _DIRECTIVE.match(text, place)
        if directive is None:
            raise _failed("the server's message is not that of DIGEST-MD5")
        name, quoted, word = directive.groups()
        found[name.lower()] = word if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        place = directive.end()
    return found


def _encoded(text: str) -> bytes:
    """In ISO 8859-1 if it can be (RFC 2831, 2.1.2.1)."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _failed(why: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"{DIGEST_MD5} failed: {why}")
