"""Signatures of webhooks.

    standard   Standard Webhooks 1.0: webhook-id, webhook-timestamp, webhook-signature
    github     X-Hub-Signature-256: sha256=HEX of the body; the id is X-GitHub-Delivery
    stripe     Stripe-Signature: t=SECONDS,v1=HEX of `t.body`; the id is that of the event
    none       nothing is checked: for senders that cannot sign, behind something that checks

Comparisons take constant time. Signed times may be five minutes off, so that a request that was
recorded cannot be sent again later.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millstream.errors import ConfigError, MillstreamError

TOLERANCE_SECONDS = 300
SECRET_PREFIX = "whsec_"
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
ID_LENGTH_MAX = 256

Headers = Mapping[str, str]  # names in lower case


class BadSignature(MillstreamError):
    """A webhook that is not from who it claims to be; `reason` is short, for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"signature refused: {reason}")
        self.reason = reason


class Verified(NamedTuple):
    """A webhook whose signature is right. `id` is empty if it has none."""

    id: str
    kept: tuple[str, ...]  # names of headers that belong to the record


def standard_key(secret: str) -> bytes:
    """The bytes of a secret as Standard Webhooks writes it. Raises `ConfigError`."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("a secret of Standard Webhooks is whsec_ and base64") from None
    if not 24 <= len(key) <= 64:
        raise ConfigError(f"a secret of Standard Webhooks has 24 to 64 bytes, not {len(key)}")
    return key


def sign(keys: list[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of webhook-signature: one signature for each key, the newest first."""
    content = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return " ".join(f"v1,{_b64(_mac(key, content))}" for key in keys)


def verify_standard(headers: Headers, body: bytes, keys: list[bytes], now: float) -> Verified:
    message_id, text = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not message_id or not text or SIGNATURE not in headers:
        raise BadSignature("missing headers")
    timestamp = _checked_time(text, now)
    expected = sign(keys, message_id, timestamp, body).split(" ")
    given = [it for it in headers[SIGNATURE].split(" ") if it.startswith("v1,")]
    _check_any(given, expected)
    return Verified(message_id[:ID_LENGTH_MAX], (ID, TIMESTAMP))


def verify_github(headers: Headers, body: bytes, keys: list[bytes], now: float) -> Verified:
    given = headers.get("x-hub-signature-256")
    if given is None:
        raise BadSignature("missing headers")
    _check_any([given], [f"sha256={_mac(key, body).hex()}" for key in keys])
    delivery = headers.get("x-github-delivery", "")
    return Verified(delivery[:ID_LENGTH_MAX], ("x-github-event", "x-github-delivery"))


def verify_stripe(headers: Headers, body: bytes, keys: list[bytes], now: float) -> Verified:
    given = headers.get("stripe-signature")
    if given is None:
        raise BadSignature("missing headers")
    parts = [it.partition("=") for it in given.split(",")]
    text = next((value for name, _, value in parts if name.strip() == "t"), "")
    timestamp = _checked_time(text, now)
    content = b"%d.%s" % (timestamp, body)
    signatures = [value for name, _, value in parts if name.strip() == "v1"]
    _check_any(signatures, [_mac(key, content).hex() for key in keys])
    return Verified(_event_id(body), ())


def verify_none(headers: Headers, body: bytes, keys: list[bytes], now: float) -> Verified:
    return Verified(headers.get(ID, "")[:ID_LENGTH_MAX], (ID,))


Verifier = Callable[[Headers, bytes, list[bytes], float], Verified]

VERIFIERS: dict[str, Verifier] = {
    "standard": verify_standard,
    "github": verify_github,
    "stripe": verify_stripe,
    "none": verify_none,
}


def key_of(kind: str, secret: str) -> bytes:
    """The key of a secret as its sender shows it. Raises `ConfigError`."""
    if kind == "standard":
        return standard_key(secret)
    if not secret:
        raise ConfigError("a secret must not be empty")
    return secret.encode()


def _checked_time(text: str, now: float) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise BadSignature("bad timestamp")
    timestamp = int(text)
    if abs(now - timestamp) > TOLERANCE_SECONDS:
        raise BadSignature("old timestamp" if timestamp < now else "future timestamp")
    return timestamp


def _check_any(given: list[str], expected: list[str]) -> None:
    """Compares all with all, also after a match."""
    found = False
    for one in given[:16]:
        for other in expected:
            found |= hmac.compare_digest(one.strip().encode(), other.encode())
    if not found:
        raise BadSignature("wrong signature")


def _event_id(body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    text = found.get("id") if isinstance(found, dict) else None
    return text[:ID_LENGTH_MAX] if isinstance(text, str) else ""


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
