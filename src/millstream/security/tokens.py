"""JSON Web Tokens (RFC 7519) as bearer tokens: signature and claims, under Kafka's rules.

    check_jwt(token, keys, rules, now_ms)

* signed by one of the keys of the JWKS, the one that `kid` names; asymmetric algorithms only
* `exp` and `iat` are required, `nbf` is obeyed, each with the clock skew
* `iss` and `aud` are what is expected, if something is
* the user is the claim `sub`, or the one that was configured

For tests there is Kafka's unsecured token (`alg` none): `check_unsecured`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.errors import ConfigError
from millstream.security.oauthbearer import BearerToken, InvalidToken

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
RSA_BITS_MIN = 2048
_KEY_TYPES = ("RSA", "EC", "OKP")
_RSA_ALGORITHMS = ALGORITHMS[:6]
_SECONDS_MAX = 1 << 52
_CLAIMS = ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
_SIGNATURE_ONLY: Any = {"verify_signature": True} | {f"verify_{name}": False for name in _CLAIMS}


@dataclass(frozen=True)
class TokenRules:
    """The settings `sasl.oauthbearer.*`."""

    audiences: tuple[str, ...] = ()  # one of them; empty: any
    issuer: str | None = None
    skew_seconds: int = 30
    user_claim: str = "sub"
    scope_claim: str = "scope"


class UnknownKey(InvalidToken):
    """No key of this id: it may be a new one."""


class SigningKey(NamedTuple):
    """A public key, its id if it has one, and the algorithms that it is for."""

    id: str | None
    algorithms: tuple[str, ...]
    key: Any  # cryptography's


class Jwks:
    """The public keys that sign tokens: a JSON Web Key Set (RFC 7517)."""

    def __init__(self, keys: Iterable[SigningKey] = ()) -> None:
        self._keys = tuple(keys)
        self._by_id = {key.id: key for key in self._keys if key.id is not None}

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, text: str | bytes) -> Jwks:
        """Raises `ConfigError`. What is not a public key for signatures, or too weak, is left
        out."""
        try:
            entries = json.loads(text)["keys"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ConfigError('not a JSON Web Key Set: expected {"keys": [...]}') from None
        if not isinstance(entries, list):
            raise ConfigError('not a JSON Web Key Set: "keys" is not a list')
        keys = [key for key in map(_signing_key, entries) if key is not None]
        if not keys:
            raise ConfigError(
                "the JSON Web Key Set has no public key for signatures (RSA with at least "
                f"{RSA_BITS_MIN} bits, EC or Ed25519)"
            )
        return cls(keys)

    def find(self, key_id: object) -> SigningKey:
        """Raises `InvalidToken`, or `UnknownKey`."""
        if key_id is None and len(self._keys) == 1:
            return self._keys[0]
        if not isinstance(key_id, str):
            raise InvalidToken("the token's header has no kid, and there are several keys")
        key = self._by_id.get(key_id)
        if key is None:
            raise UnknownKey(f"no key has the id {key_id[:100]!r}, the token's kid")
        return key


def _signing_key(entry: object) -> SigningKey | None:
    import jwt

    if not isinstance(entry, dict) or entry.get("kty") not in _KEY_TYPES:
        return None
    if entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in entry.items() if name != "d"}  # the private part
    try:
        parsed = jwt.PyJWK(public)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        return None
    is_rsa = entry["kty"] == "RSA"
    if is_rsa and parsed.key.key_size < RSA_BITS_MIN:
        return None
    declared = entry.get("alg") is not None
    names = _RSA_ALGORITHMS if is_rsa and not declared else (parsed.algorithm_name,)
    algorithms = tuple(name for name in names if name in ALGORITHMS)
    key_id = entry.get("kid")
    return SigningKey(key_id if isinstance(key_id, str) else None, algorithms, parsed.key)


def check_jwt(token: str, keys: Jwks, rules: TokenRules, now_ms: int) -> BearerToken:
    """What a signed token says. Raises `InvalidToken`, or `UnknownKey`."""
    import jwt  # not before there is a token

    try:
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise InvalidToken(
                f"the token's algorithm is {str(algorithm)[:20]!r}, which is refused"
            )
        key = keys.find(header.get("kid"))
        if algorithm not in key.algorithms:
            raise InvalidToken(f"the token's algorithm {algorithm} is not one of its key")
        claims = jwt.decode(token, key.key, algorithms=[algorithm], options=_SIGNATURE_ONLY)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise InvalidToken(f"the token cannot be verified: {type(error).__name__}") from None
    return _checked_claims(claims, rules, now_ms)


def check_unsecured(token: str, rules: TokenRules, now_ms: int) -> BearerToken:
    """What an unsecured token (`alg` none, no signature) says. Anyone can write one."""
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise InvalidToken("not an unsecured token: it has a signature")
    header, claims = _decoded(parts[0]), _decoded(parts[1])
    if header.get("alg") != "none":
        raise InvalidToken("not an unsecured token: its algorithm is not none")
    return _checked_claims(claims, rules, now_ms)


def _decoded(part: str) -> dict[str, Any]:
    try:
        padded = part + "=" * (-len(part) % 4)
        value = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidToken("not a token: a part of it is no JSON object")
    return value


def _checked_claims(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> BearerToken:
    skew_ms = rules.skew_seconds * 1000
    expires_at_ms = _time_ms(claims, "exp")
    if now_ms - skew_ms >= expires_at_ms:
        raise InvalidToken("the token has expired")
    if _time_ms(claims, "iat") > now_ms + skew_ms:
        raise InvalidToken("the token was issued in the future (iat)")
    if "nbf" in claims and _time_ms(claims, "nbf") > now_ms + skew_ms:
        raise InvalidToken("the token is not valid yet (nbf)")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise InvalidToken("the token's issuer (iss) is not the expected one")
    if rules.audiences and not set(_texts(claims.get("aud"))) & set(rules.audiences):
        raise InvalidToken("the token's audience (aud) is not an expected one")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise InvalidToken(f"the token has no claim {rules.user_claim}, the name of the user")
    scopes = _texts(claims.get(rules.scope_claim))
    return BearerToken(user.strip(), expires_at_ms, tuple(scopes))


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if not isinstance(value, int | float) or not 0 <= value < _SECONDS_MAX:
        raise InvalidToken(f"the token's claim {name} is missing, or not a time in seconds")
    return int(value * 1000)


def _texts(value: object) -> list[str]:
    """A claim that is a text, or a list of them."""
    if isinstance(value, str):
        return [value]
    return [it for it in value if isinstance(it, str)] if isinstance(value, list) else []
