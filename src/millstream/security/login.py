"""The client's side of a SASL exchange: what a client, or a broker that calls another, sends.

    login = make_login("SCRAM-SHA-512", username="ann", password="...")
    token = login.begin()
    while token is not None:
        token = login.respond(await answer_to(token))

Pure, like the server's side (`exchange`). A SCRAM login ends only if the server proves that it
knows the credential too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from millstream.errors import ConfigError
from millstream.security.exchange import OAUTHBEARER, PLAIN, AuthenticationFailed
from millstream.security.scram import BY_NAME as SCRAM_MECHANISMS
from millstream.security.scram import ITERATIONS_MIN, ScramMechanism, salt_password

MECHANISMS = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
ITERATIONS_MAX = 1_000_000  # half a second; a server that asks for more wants our processor

_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>\d{1,9})"
    r"(?:,[A-Za-z]+=[^,]*)*"
)
_SERVER_FINAL = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,[A-Za-z]+=[^,]*)*")


class Login(Protocol):
    """One authentication. It cannot be used twice."""

    mechanism: str

    def begin(self) -> bytes:
        """The first token."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """The next token, None when complete. Raises `AuthenticationFailed`."""
        ...


def make_login(
    mechanism: str,
    *,
    username: str | None = None,
    password: str | None = None,
    token: str | None = None,
    extensions: Mapping[str, str] | None = None,
) -> Login:
    """Raises `ConfigError` for a mechanism that does not exist, or lacks what it needs."""
    if mechanism == OAUTHBEARER:
        if not token:
            raise ConfigError("OAUTHBEARER needs a token")
        return BearerLogin(token, extensions or {})
    if mechanism != PLAIN and mechanism not in SCRAM_MECHANISMS:
        known = ", ".join(MECHANISMS)
        raise ConfigError(f"sasl.mechanism is {mechanism}; it must be one of {known}")
    if not username or password is None:
        raise ConfigError(f"{mechanism} needs sasl.username and sasl.password")
    if mechanism == PLAIN:
        return PlainLogin(username, password)
    return ScramLogin(SCRAM_MECHANISMS[mechanism], username, password)


class PlainLogin:
    """The password itself (RFC 4616): only over TLS is it safe from others."""

    mechanism = PLAIN

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username + password:
            raise ConfigError("sasl.username and sasl.password cannot contain NUL in PLAIN")
        self._token = f"\0{username}\0{password}".encode()

    def begin(self) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        return None


class BearerLogin:
    """A token that someone else signed (RFC 7628)."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        if re.search(r"[^\x21-\x7e]", token):
            raise ConfigError("the token of OAUTHBEARER contains blanks or control characters")
        if any("\1" in f"{name}{value}" or "=" in name for name, value in extensions.items()):
            raise ConfigError("sasl.oauthbearer.extensions: write name=value,name=value")
        pairs = "".join(f"{name}={value}\1" for name, value in extensions.items())
        self._token = f"n,,\1auth=Bearer {token}\1{pairs}\1".encode()
        self._was_refused = False

    def begin(self) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # It is the reason for a refusal; after this answer the server has to fail the exchange.
        if self._was_refused:
            raise AuthenticationFailed("OAUTHBEARER failed: the broker refused the token twice")
        self._was_refused = True
        return b"\1"


class ScramLogin:
    """Proof of a password that the server cannot read (RFC 5802)."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self.mechanism = mechanism.name
        self._hash = mechanism
        self._password = password
        self._nonce = new_nonce()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={self._nonce}"
        self._signature: bytes | None = None  # the server's, once we know it
        self._is_complete = False

    def begin(self) -> bytes:
        return f"n,,{self._first}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        text = challenge.decode("utf-8", "replace")
        if self._signature is None:
            return self._prove(text)
        if not self._is_complete:
            self._check_server(text)
            self._is_complete = True
        return None

    def _prove(self, server_first: str) -> bytes:
        message = _SERVER_FIRST.fullmatch(server_first)
        if message is None:
            raise self._failed("the broker's first message is not SCRAM's")
        nonce = message["nonce"]
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise self._failed("the broker answered another client's message")
        iterations = int(message["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise self._failed(
                f"the broker asks for {iterations} iterations, outside of {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}"
            )
        salt = self._decoded(message["salt"])
        salted = salt_password(self._hash, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first},{server_first},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash.hash)
        stored_key = hashlib.new(self._hash.hash, client_key).digest()
        mask = hmac.digest(stored_key, signed, self._hash.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash.hash)
        self._signature = hmac.digest(server_key, signed, self._hash.hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _check_server(self, server_final: str) -> None:
        message = _SERVER_FINAL.fullmatch(server_final)
        if message is None:
            raise self._failed("the broker's final message is not SCRAM's")
        assert self._signature is not None
        if not hmac.compare_digest(self._decoded(message["signature"]), self._signature):
            raise self._failed("the broker does not know the password: it may be an impostor")

    def _decoded(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise self._failed("the broker sent what is not base64") from None

    def _failed(self, why: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"{self.mechanism} failed: {why}")
