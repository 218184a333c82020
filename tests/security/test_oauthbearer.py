"""OAUTHBEARER's messages: kafka-python's client against our server, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth

from millstream.security.exchange import AuthenticationFailed
from millstream.security.oauthbearer import BearerToken, InvalidToken, OauthBearerExchange
from millstream.security.principal import Principal


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str, extensions: dict[str, str]) -> None:
        super().__init__()
        self._token = token
        self._extensions = extensions

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


def check(token: str) -> BearerToken:
    if token != "good":
        raise InvalidToken("the token has expired")
    return BearerToken("alice", 1_000)


@pytest.mark.parametrize("extensions", [{}, {"traceId": "123", "other": "a b"}])
def test_kafka_python_logs_in(extensions: dict[str, str]) -> None:
    client = SaslMechanismOAuth(sasl_oauth_token_provider=Provider("good", extensions))
    exchange = OauthBearerExchange(check)
    client.receive(exchange.respond(client.auth_bytes()))
    assert client.is_authenticated()
    assert exchange.is_complete
    assert exchange.principal == Principal("User", "alice")
    assert exchange.expires_at_ms == 1_000


def test_kafka_python_is_refused_in_two_rounds() -> None:
    client = SaslMechanismOAuth(sasl_oauth_token_provider=Provider("bad", {}))
    exchange = OauthBearerExchange(check)
    answer = exchange.respond(client.auth_bytes())
    assert answer == b'{"status":"invalid_token"}'
    client.receive(answer)
    assert not client.is_authenticated()
    with pytest.raises(AuthenticationFailed) as failed:
        exchange.respond(client.auth_bytes())
    assert failed.value.message == '{"status":"invalid_token"}'
    assert failed.value.reason == "the token has expired"
    assert not exchange.is_complete


def test_good_token_after_a_bad_one_does_not_help() -> None:
    exchange = OauthBearerExchange(check)
    exchange.respond(b"n,,\x01auth=Bearer bad\x01\x01")
    with pytest.raises(AuthenticationFailed):
        exchange.respond(b"n,,\x01auth=Bearer good\x01\x01")
    assert not exchange.is_complete


@pytest.mark.parametrize(
    "token",
    [
        b"n,a=alice,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=bearer  good\x01\x01",
        b"n,,\x01a=b\x01auth=BEARER good \x01\x01",
    ],
)
def test_message_is_accepted(token: bytes) -> None:
    exchange = OauthBearerExchange(check)
    assert exchange.respond(token) == b""
    assert exchange.is_complete


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer good\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer go\x00od\x01\x01",
        b"n,,\x01token=Bearer good\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,a=bob,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\x01\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_message_is_refused(token: bytes) -> None:
    exchange = OauthBearerExchange(check)
    with pytest.raises(AuthenticationFailed):
        exchange.respond(token)
    assert not exchange.is_complete
    assert exchange.principal is None


@given(st.lists(st.binary(max_size=60) | st.from_regex(rb"n,,\x01(\w+=\w+\x01)*"), max_size=3))
def test_any_other_bytes_fail_cleanly(tokens: list[bytes]) -> None:
    exchange = OauthBearerExchange(check)
    with contextlib.suppress(AuthenticationFailed):
        for token in tokens:
            exchange.respond(token)
    assert not exchange.is_complete
