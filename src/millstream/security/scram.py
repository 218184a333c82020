"""SCRAM-SHA-256 and SCRAM-SHA-512, the server's side (RFC 5802, with Kafka's limits).

    client  n,,n=alice,r=<nonce>
    server  r=<nonce of both>,s=<salt>,i=<iterations>
    client  c=biws,r=<nonce of both>,p=<proof>
    server  v=<signature>

The server keeps no password, but a salt and two keys (`ScramCredential`). The client pays for the
iterations; the server computes a few HMACs.

An unknown user gets the same answers as a known one, up to the proof: with a salt that is always
the same for that name, so that nobody learns who exists. Names are used as they are sent, as Kafka
does, without SASLprep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.security.exchange import AuthenticationFailed, wrong_credentials
from millstream.security.principal import USER_TYPE, Principal

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
ITERATIONS_DEFAULT = 4096  # Kafka's tools', and what unknown users seem to have

_SALT_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_BITS = 130  # written with 25 or 26 of these characters, as Kafka's tools make salts

_CLIENT_FIRST = re.compile(
    r"(?P<gs2>(?P<binding>[ny]|p=[^,]*),(?:a=(?P<authzid>[^,]*))?,)"
    r"(?P<bare>(?P<mandatory>m=[^,]*,)?n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,]*)*))",
    re.DOTALL,
)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]*),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.DOTALL,
)
_ESCAPED = re.compile(r"=(2C|3D)?")


class ScramMechanism(NamedTuple):
    name: str
    code: int  # in the metadata log, and in APIs 50 and 51
    hash: str


SCRAM_SHA_256 = ScramMechanism("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512 = ScramMechanism("SCRAM-SHA-512", 2, "sha512")
BY_NAME = {it.name: it for it in (SCRAM_SHA_256, SCRAM_SHA_512)}
BY_CODE = {it.code: it for it in (SCRAM_SHA_256, SCRAM_SHA_512)}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What the server keeps of a password. Its repr shows no keys."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        """AlterUserScramCredentials sends the salted password."""
        client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash)
        stored_key = hashlib.new(mechanism.hash, client_key).digest()
        server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash)
        return cls(salt, stored_key, server_key, iterations)

    @classmethod
    def of_password(
        cls, mechanism: ScramMechanism, password: str, iterations: int = ITERATIONS_DEFAULT
    ) -> ScramCredential:
        """With a new salt."""
        salt = new_salt()
        salted = salt_password(mechanism, password, salt, iterations)
        return cls.of_salted_password(mechanism, salted, salt, iterations)


ScramCredentials = Mapping[tuple[str, int], ScramCredential]  # by user and mechanism's code


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's `Hi`: takes 2 to 20 ms."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def new_salt() -> bytes:
    return _written(secrets.randbits(_SALT_BITS))


def _written(number: int) -> bytes:
    """In base 36, without leading zeros, as Java's `BigInteger.toString(36)`."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _SALT_CHARACTERS[digit] + digits
    return digits.encode()


def unknown_credential(mechanism: ScramMechanism, user: str, secret: bytes) -> ScramCredential:
    """A credential that no password has, always the same for a name and a secret."""
    seed = hmac.digest(secret, f"{mechanism.name} {user}".encode(), "sha512")
    salt = _written(int.from_bytes(seed) % (1 << _SALT_BITS))
    key = hmac.digest(secret, seed, mechanism.hash)
    return ScramCredential(salt, key, key, ITERATIONS_DEFAULT)


class ScramExchange:
    """One authentication; see `SaslExchange`."""

    expires_at_ms: int | None = None

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: ScramCredentials,
        secret: bytes,
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        """`secret` makes the salts of unknown users."""
        self._mechanism = mechanism
        self._credentials = credentials
        self._secret = secret
        self._new_nonce = new_nonce
        self._first: _FirstRound | None = None
        self.is_complete = False
        self.principal: Principal | None = None

    def guess_at(self, token: bytes) -> str | None:
        return None if self._first is None else self._first.user

    def respond(self, token: bytes) -> bytes:
        if self.is_complete:
            raise self._malformed("a message after the last one")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise self._malformed("a message that is not UTF-8") from None
        if self._first is None:
            self._first = self._begin(text)
            return self._first.server_message.encode()
        return self._finish(self._first, text)

    def _begin(self, text: str) -> _FirstRound:
        message = _CLIENT_FIRST.fullmatch(text)
        if message is None:
            raise self._malformed("a first message that is not SCRAM's")
        user = self._user_name(message["name"])
        self._check_first(message, user)
        # Both are made in any case, so that the time it takes does not tell who exists.
        made_up = unknown_credential(self._mechanism, user, self._secret)
        known = self._credentials.get((user, self._mechanism.code))
        credential = made_up if known is None else known
        nonce = message["nonce"] + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        return _FirstRound(
            user=user,
            is_known=known is not None,
            credential=credential,
            nonce=nonce,
            binding=base64.b64encode(message["gs2"].encode()).decode(),
            client_message=message["bare"],
            server_message=f"r={nonce},s={salt},i={credential.iterations}",
        )

    def _check_first(self, message: re.Match[str], user: str) -> None:
        if message["binding"].startswith("p="):
            raise self._malformed("a request for channel binding, which is not supported")
        if message["mandatory"]:
            raise self._malformed("a mandatory extension, of which none is supported")
        authzid = message["authzid"]
        if authzid and self._user_name(authzid) != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username",
                user=user,
            )
        extensions = message["extensions"].lower().split(",")
        if "tokenauth=true" in extensions:
            raise wrong_credentials(
                self._mechanism.name, "delegation tokens are not supported", user
            )

    def _finish(self, first: _FirstRound, text: str) -> bytes:
        message = _CLIENT_FINAL.fullmatch(text)
        if message is None:
            raise self._malformed("a final message that is not SCRAM's", first.user)
        if message["nonce"] != first.nonce:
            raise self._malformed("another nonce in the final message", first.user)
        if message["binding"] != first.binding:
            raise self._malformed("another channel binding in the final message", first.user)
        signed = f"{first.client_message},{first.server_message},{message['without_proof']}"
        proof = self._decoded(message["proof"], first.user)
        if not self._is_proof(first.credential, signed.encode(), proof) or not first.is_known:
            why = "wrong password" if first.is_known else "no such user"
            raise wrong_credentials(self._mechanism.name, why, first.user)
        signature = hmac.digest(first.credential.server_key, signed.encode(), self._mechanism.hash)
        self.is_complete = True
        self.principal = Principal(USER_TYPE, first.user)
        return b"v=" + base64.b64encode(signature)

    def _is_proof(self, credential: ScramCredential, signed: bytes, proof: bytes) -> bool:
        signature = hmac.digest(credential.stored_key, signed, self._mechanism.hash)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._mechanism.hash, client_key).digest()
        return hmac.compare_digest(stored_key, credential.stored_key)

    def _decoded(self, proof: str, user: str) -> bytes:
        try:
            return base64.b64decode(proof, validate=True)
        except binascii.Error:
            raise self._malformed("a proof that is not base64", user) from None

    def _user_name(self, sasl_name: str) -> str:
        def unescape(found: re.Match[str]) -> str:
            if found[1] is None:
                raise self._malformed("a user name in which = is not followed by 2C or 3D")
            return "," if found[1] == "2C" else "="

        return _ESCAPED.sub(unescape, sasl_name)

    def _malformed(self, what: str, user: str | None = None) -> AuthenticationFailed:
        message = f"Authentication failed: the client sent {what} ({self._mechanism.name})"
        return AuthenticationFailed(message, user=user)


class _FirstRound(NamedTuple):
    """What the final message refers to."""

    user: str
    is_known: bool
    credential: ScramCredential
    nonce: str
    binding: str
    client_message: str
    server_message: str
