"""SaslHandshake and SaslAuthenticate by hand, compared with the generated codecs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ProtocolError
from millstream.protocol.messages import encode_request, encode_response
from millstream.protocol.sasl import (
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    decode_authenticate,
    decode_handshake,
    encode,
)

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)
TOKENS = st.binary(max_size=300)


@given(mechanism=TEXT, version=st.integers(0, 1))
def test_handshake_is_decoded(mechanism: str, version: int) -> None:
    body = encode_request("sasl_handshake", version, {"mechanism": mechanism})
    assert decode_handshake(memoryview(body)) == mechanism


@given(token=TOKENS, version=st.integers(0, 2))
def test_authenticate_is_decoded(token: bytes, version: int) -> None:
    body = encode_request("sasl_authenticate", version, {"auth_bytes": token})
    assert decode_authenticate(version, memoryview(body)) == token


@given(
    mechanisms=st.lists(TEXT, max_size=5), version=st.integers(0, 1), code=st.sampled_from([0, 33])
)
def test_answer_to_handshake_is_encoded(mechanisms: list[str], version: int, code: int) -> None:
    fields = {"error_code": code, "mechanisms": mechanisms}
    expected = encode_response("sasl_handshake", version, fields)
    assert encode(HANDSHAKE_KEY, version, fields) == expected


@given(
    version=st.integers(0, 2),
    message=st.none() | TEXT,
    token=TOKENS,
    lifetime_ms=st.integers(0, 2**40),
)
def test_answer_to_authenticate_is_encoded(
    version: int, message: str | None, token: bytes, lifetime_ms: int
) -> None:
    fields = {
        "error_code": 0 if message is None else 58,
        "error_message": message,
        "auth_bytes": token,
        "session_lifetime": lifetime_ms,
    }
    expected = encode_response("sasl_authenticate", version, fields)
    assert encode(AUTHENTICATE_KEY, version, fields) == expected


def test_fields_have_defaults() -> None:
    fields = {"error_code": 0, "auth_bytes": b"x"}
    expected = encode_response("sasl_authenticate", 2, fields)
    assert encode(AUTHENTICATE_KEY, 2, fields) == expected


@pytest.mark.parametrize("version", range(3))
@given(body=st.binary(max_size=40))
def test_any_other_bytes_fail_cleanly(version: int, body: bytes) -> None:
    for decode in (decode_handshake, lambda it: decode_authenticate(version, it)):
        try:
            decode(memoryview(body))
        except ProtocolError:
            continue


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\5PLAI", b"\xff\xff", b"\0\1\xff"])
def test_handshake_that_is_malformed(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_handshake(memoryview(body))


@pytest.mark.parametrize(
    ("version", "body"),
    [(0, b""), (1, b"\0\0\0\5abcd"), (1, b"\xff\xff\xff\xff"), (2, b"\0\0"), (2, b"\3a")],
)
def test_authenticate_that_is_malformed(version: int, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_authenticate(version, memoryview(body))
