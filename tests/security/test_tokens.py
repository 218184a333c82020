"""JSON Web Tokens: signatures, claims, and everything that makes one invalid."""

from __future__ import annotations

import base64
import functools
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.security.oauthbearer import BearerToken, InvalidToken
from millstream.security.tokens import (
    Jwks,
    TokenRules,
    UnknownKey,
    check_jwt,
    check_unsecured,
)

NOW = 1_800_000_000  # seconds
CLAIMS = {"sub": "alice", "iat": NOW - 10, "exp": NOW + 100}
RULES = TokenRules()


@functools.cache
def private_key(kind: str) -> Any:
    return {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "other": lambda: rsa.generate_private_key(65537, 2048),
        "weak": lambda: rsa.generate_private_key(65537, 1024),
        "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ed": ed25519.Ed25519PrivateKey.generate,
    }[kind]()


ALGORITHM = {"rsa": "RS256", "other": "RS256", "weak": "RS256", "ec": "ES256", "ed": "EdDSA"}


def jwk(kind: str, **more: str) -> dict[str, Any]:
    algorithm = jwt.get_algorithm_by_name(ALGORITHM[kind])
    entry: dict[str, Any] = json.loads(algorithm.to_jwk(private_key(kind).public_key()))  # type: ignore[attr-defined]
    return entry | {"kid": kind, **more}


def keys(*kinds: str) -> Jwks:
    return Jwks.parse(json.dumps({"keys": [jwk(kind) for kind in kinds or ("rsa", "ec", "ed")]}))


def sign(
    claims: dict[str, Any], kind: str = "rsa", algorithm: str | None = None, **header: Any
) -> str:
    chosen = algorithm or ALGORITHM[kind]
    headers = {name: it for name, it in ({"kid": kind} | header).items() if it is not None}
    return jwt.encode(claims, private_key(kind), chosen, headers=headers)


def check(claims: dict[str, Any], rules: TokenRules = RULES) -> BearerToken:
    return check_jwt(sign(claims), keys(), rules, NOW * 1000)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("rsa", "RS256"), ("rsa", "RS512"), ("rsa", "PS256"), ("ec", "ES256"), ("ed", "EdDSA")],
)
def test_signed_token(kind: str, algorithm: str) -> None:
    token = sign(CLAIMS | {"scope": "read write"}, kind, algorithm)
    found = check_jwt(token, keys(), RULES, NOW * 1000)
    assert found == BearerToken("alice", (NOW + 100) * 1000, ("read write",))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": None}, "exp is missing"),
        ({"exp": "soon"}, "exp is missing, or not"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": 10**400}, "exp is missing, or not"),
        ({"iat": None}, "iat is missing"),
        ({"iat": NOW + 31}, "issued in the future"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"sub": None}, "no claim sub"),
        ({"sub": " "}, "no claim sub"),
        ({"sub": ["alice"]}, "no claim sub"),
    ],
)
def test_claims_that_make_a_token_invalid(changes: dict[str, Any], reason: str) -> None:
    claims = {k: v for k, v in (CLAIMS | changes).items() if v is not None}
    with pytest.raises(InvalidToken, match=reason):
        check(claims)


@pytest.mark.parametrize("changes", [{"exp": NOW - 29}, {"iat": NOW + 30}, {"nbf": NOW + 30}])
def test_clocks_may_differ_a_little(changes: dict[str, Any]) -> None:
    assert check(CLAIMS | changes).user == "alice"
    with pytest.raises(InvalidToken):
        check(CLAIMS | changes, TokenRules(skew_seconds=0))


def test_expected_audience_and_issuer() -> None:
    rules = TokenRules(audiences=("orders", "events"), issuer="https://id.example")
    right = CLAIMS | {"iss": "https://id.example"}
    assert check(right | {"aud": "events"}, rules).user == "alice"
    assert check(right | {"aud": ["x", "orders"]}, rules).user == "alice"
    for wrong in ({"aud": "x"}, {"aud": []}, {"aud": 7}, {}, {"aud": "orders", "iss": "other"}):
        with pytest.raises(InvalidToken, match=r"audience|issuer"):
            check(right | wrong, rules)


def test_names_of_claims() -> None:
    rules = TokenRules(user_claim="client_id", scope_claim="scp")
    claims = CLAIMS | {"client_id": "svc", "scp": ["a", "b"]}
    assert check(claims, rules) == BearerToken("svc", (NOW + 100) * 1000, ("a", "b"))


def test_signature_of_another_key_is_refused() -> None:
    token = sign(CLAIMS, "other", kid="rsa")
    with pytest.raises(InvalidToken, match="InvalidSignature"):
        check_jwt(token, keys(), RULES, NOW * 1000)


def test_changed_claims_are_refused() -> None:
    header, _, signature = sign(CLAIMS).split(".")
    forged = base64.urlsafe_b64encode(json.dumps(CLAIMS | {"sub": "root"}).encode()).rstrip(b"=")
    with pytest.raises(InvalidToken):
        check_jwt(f"{header}.{forged.decode()}.{signature}", keys(), RULES, NOW * 1000)


def test_unknown_key_is_distinguished() -> None:
    """It may be a new one, so the keys are loaded again."""
    with pytest.raises(UnknownKey, match="'other'"):
        check_jwt(sign(CLAIMS, "other"), keys(), RULES, NOW * 1000)


def test_token_without_key_id() -> None:
    token = sign(CLAIMS, kid=None)
    assert check_jwt(token, keys("rsa"), RULES, NOW * 1000).user == "alice"
    with pytest.raises(InvalidToken, match="no kid"):
        check_jwt(token, keys("rsa", "ec"), RULES, NOW * 1000)


def test_unsigned_token_is_refused() -> None:
    token = jwt.encode(CLAIMS, None, "none", headers={"kid": "rsa"})
    with pytest.raises(InvalidToken, match="algorithm is 'none'"):
        check_jwt(token, keys(), RULES, NOW * 1000)


def test_public_key_as_a_password_is_refused() -> None:
    """The known confusion of HS256 with RS256: the public key is no secret."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa"}').rstrip(b"=").decode()
    rest = sign(CLAIMS).split(".", 1)[1]
    with pytest.raises(InvalidToken, match="algorithm is 'HS256'"):
        check_jwt(f"{header}.{rest}", keys(), RULES, NOW * 1000)


def test_algorithm_must_be_that_of_the_key() -> None:
    declared = Jwks.parse(json.dumps({"keys": [jwk("rsa", alg="RS256")]}))
    with pytest.raises(InvalidToken, match="PS256 is not one of its key"):
        check_jwt(sign(CLAIMS, algorithm="PS256"), declared, RULES, NOW * 1000)
    with pytest.raises(InvalidToken, match="RS256 is not one of its key"):
        check_jwt(sign(CLAIMS, kid="ec"), keys(), RULES, NOW * 1000)


def test_extensions_that_must_be_understood_are_refused() -> None:
    with pytest.raises(InvalidToken, match="cannot be verified"):
        check_jwt(sign(CLAIMS, crit=["x"], x=1), keys(), RULES, NOW * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"keys": {}}',
        '{"keys": []}',
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}, 7, {}]}),
        json.dumps({"keys": [{"kty": "RSA", "kid": "a"}, {"kty": "EC", "crv": "P-256"}]}),
    ],
)
def test_key_sets_without_usable_keys_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="JSON Web Key Set"):
        Jwks.parse(text)


def test_keys_for_other_purposes_are_left_out() -> None:
    entries = [jwk("rsa", use="enc"), jwk("weak"), jwk("ec"), {"kty": "oct", "k": "c2VjcmV0"}]
    assert len(Jwks.parse(json.dumps({"keys": entries}))) == 1


def unsecured(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, None, "none")


def test_unsecured_token() -> None:
    assert check_unsecured(unsecured(CLAIMS), RULES, NOW * 1000).user == "alice"
    with pytest.raises(InvalidToken, match="expired"):
        check_unsecured(unsecured(CLAIMS | {"exp": 1}), RULES, NOW * 1000)
    with pytest.raises(InvalidToken, match="signature"):
        check_unsecured(sign(CLAIMS), RULES, NOW * 1000)


@given(st.text(alphabet="abcXYZ0189-_.=", max_size=80) | st.text(max_size=20))
def test_any_other_text_fails_cleanly(token: str) -> None:
    for parts in (token, f"eyJhbGciOiJSUzI1NiJ9.{token}", f"{token}.{token}.{token}"):
        with pytest.raises(InvalidToken):
            check_jwt(parts, keys("rsa"), RULES, NOW * 1000)
        with pytest.raises(InvalidToken):
            check_unsecured(parts, RULES, NOW * 1000)
