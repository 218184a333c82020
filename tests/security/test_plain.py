"""PLAIN: kafka-python's client against our server, and messages that are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.plain import SaslMechanismPlain

from millstream.security.exchange import AuthenticationFailed
from millstream.security.plain import PlainExchange
from millstream.security.principal import Principal

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


@given(user=TEXT, password=TEXT)
def test_kafka_python_logs_in(user: str, password: str) -> None:
    client = SaslMechanismPlain(sasl_plain_username=user, sasl_plain_password=password)
    exchange = PlainExchange({user: password})
    client.receive(exchange.respond(client.auth_bytes()))
    assert client.is_authenticated()
    assert exchange.is_complete
    assert exchange.principal == Principal("User", user)
    assert exchange.expires_at_ms is None


@pytest.mark.parametrize(
    "token",
    [
        b"\0alice\0",
        b"\0\0wonderland",
        b"alice\0wonderland",
        b"\0alice\0wonderland\0",
        b"\0alice\0wonderlan",
        b"\0Alice\0wonderland",
        b"bob\0alice\0wonderland",
        b"\0alice\0\xff",
        b"",
    ],
)
def test_message_is_refused(token: bytes) -> None:
    exchange = PlainExchange({"alice": "wonderland", "empty": ""})
    with pytest.raises(AuthenticationFailed) as failed:
        exchange.respond(token)
    assert not exchange.is_complete
    assert exchange.principal is None
    assert "wonderlan" not in f"{failed.value} {failed.value.reason}"


def test_every_token_with_a_user_is_a_guess() -> None:
    exchange = PlainExchange({})
    assert exchange.guess_at(b"\0alice\0x") == exchange.guess_at(b"bob\0alice\0x") == "alice"
    assert exchange.guess_at(b"\0alice\0\xff") is None


def test_unknown_user_and_wrong_password_get_the_same_answer() -> None:
    answers = set()
    for token in (b"\0alice\0x", b"\0bob\0x"):
        with pytest.raises(AuthenticationFailed) as failed:
            PlainExchange({"alice": "wonderland"}).respond(token)
        answers.add(failed.value.message)
    assert answers == {"Authentication failed: Invalid username or password"}


def test_user_with_an_empty_password_cannot_log_in() -> None:
    with pytest.raises(AuthenticationFailed):
        PlainExchange({"empty": ""}).respond(b"\0empty\0")


def test_second_message_is_refused() -> None:
    exchange = PlainExchange({"alice": "wonderland"})
    exchange.respond(b"\0alice\0wonderland")
    with pytest.raises(AuthenticationFailed):
        exchange.respond(b"\0alice\0wonderland")


@given(st.binary(max_size=60))
def test_any_other_bytes_fail_cleanly(token: bytes) -> None:
    exchange = PlainExchange({"alice": "wonderland"})
    with contextlib.suppress(AuthenticationFailed):
        exchange.respond(token)
    assert not exchange.is_complete
