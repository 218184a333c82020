"""Signatures of webhooks, with the library of Standard Webhooks as the oracle."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from millstream.bridges.http.signatures import (
    VERIFIERS,
    BadSignature,
    key_of,
    sign,
    standard_key,
    verify_github,
    verify_none,
    verify_standard,
    verify_stripe,
)
from millstream.errors import ConfigError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = standard_key(SECRET)
OLD_KEY = b"o" * 24
BODY = b'{"a": "b"}'
NOW = 1_700_000_000


def standard(body: bytes = BODY, now: int = NOW, keys: list[bytes] | None = None) -> dict[str, str]:
    signature = sign(keys or [KEY], "id-1", now, body)
    return {"webhook-id": "id-1", "webhook-timestamp": str(now), "webhook-signature": signature}


def test_our_signature_is_that_of_the_library() -> None:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    assert sign([KEY], "id-1", NOW, BODY) == Webhook(SECRET).sign("id-1", moment, BODY.decode())


def test_library_verifies_what_we_sign_with_two_keys() -> None:
    headers = standard(now=int(time.time()), keys=[OLD_KEY, KEY])
    assert Webhook(SECRET).verify(BODY, headers) == {"a": "b"}


def test_standard_webhook_is_verified_with_any_key() -> None:
    assert verify_standard(standard(), BODY, [OLD_KEY, KEY], NOW + 299).id == "id-1"
    assert verify_standard(standard(keys=[OLD_KEY, KEY]), BODY, [KEY], NOW).id == "id-1"


@pytest.mark.parametrize(
    ("changed", "body", "now", "reason"),
    [
        ({}, b"other", NOW, "wrong signature"),
        ({"webhook-id": "id-2"}, BODY, NOW, "wrong signature"),
        ({"webhook-signature": ""}, BODY, NOW, "wrong signature"),
        ({"webhook-signature": "v2,abc"}, BODY, NOW, "wrong signature"),
        ({"webhook-id": ""}, BODY, NOW, "missing headers"),
        ({"webhook-timestamp": "soon"}, BODY, NOW, "bad timestamp"),
        ({"webhook-timestamp": "٣"}, BODY, NOW, "bad timestamp"),
        ({}, BODY, NOW + 301, "old timestamp"),
        ({}, BODY, NOW - 301, "future timestamp"),
    ],
)
def test_wrong_standard_webhook_is_refused(
    changed: dict[str, str], body: bytes, now: int, reason: str
) -> None:
    with pytest.raises(BadSignature) as raised:
        verify_standard(standard() | changed, body, [KEY], now)
    assert raised.value.reason == reason


def test_github_and_stripe_are_verified() -> None:
    digest = hmac.new(b"key", BODY, hashlib.sha256).hexdigest()
    github = {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": "d-1"}
    assert verify_github(github, BODY, [b"key"], NOW).id == "d-1"
    body = b'{"id": "evt_1"}'
    digest = hmac.new(b"key", b"%d.%s" % (NOW, body), hashlib.sha256).hexdigest()
    stripe = {"stripe-signature": f"t={NOW},v1={'0' * 64},v1={digest}"}
    assert verify_stripe(stripe, body, [b"key"], NOW).id == "evt_1"
    for wrong in ([b"other"], []):
        with pytest.raises(BadSignature):
            verify_github(github, BODY, wrong, NOW)
        with pytest.raises(BadSignature):
            verify_stripe(stripe, body, wrong, NOW)
    with pytest.raises(BadSignature, match="old timestamp"):
        verify_stripe(stripe, body, [b"key"], NOW + 1000)
    assert verify_none({}, BODY, [], NOW).id == ""


@given(st.sampled_from(sorted(set(VERIFIERS) - {"none"})), st.text(max_size=80), st.binary())
def test_no_header_makes_a_forgery_right(kind: str, text: str, body: bytes) -> None:
    names = ("webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256")
    headers = dict.fromkeys((*names, "stripe-signature"), text)
    with pytest.raises(BadSignature):
        VERIFIERS[kind](headers, body, [KEY], NOW)


@pytest.mark.parametrize("secret", ["whsec_!", "whsec_c2hvcnQ=", "whsec_" + "YWFh" * 30])
def test_bad_secret_is_named_without_showing_it(secret: str) -> None:
    with pytest.raises(ConfigError) as raised:
        key_of("standard", secret)
    assert secret not in str(raised.value)
    assert key_of("github", "plain") == b"plain"
    with pytest.raises(ConfigError):
        key_of("github", "")
