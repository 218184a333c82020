"""KIP-368: clients prove again who they are, before their session ends, and lose nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.conformance.conftest import client_parameters
from tests.conformance.test_secured_clients import by_password, config_of
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Record
from tests.peers.secured import (
    ADMIN,
    ConnectionEnded,
    SaslRefused,
    Secured,
    SecuredWire,
    password_of,
)
from tests.peers.wire import frame

SESSION_MS = 3000
SECURED_USERS = ("alice", "bob")
OWN_SETTINGS = {
    "connections.max.reauth.ms": str(SESSION_MS),
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture
def wire(secured: Secured) -> Iterator[SecuredWire]:
    with secured.wire("alice") as wire:
        yield wire


def is_served(wire: SecuredWire) -> bool:
    return bool(wire.call("metadata", 12, topics=()).brokers)


@pytest.mark.slow
def test_session_has_an_end_and_is_renewed(secured: Secured) -> None:
    with secured.stranger() as wire:
        assert 0 < wire.sign_in("alice") <= SESSION_MS
        deadline = time.monotonic() + 3 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            assert is_served(wire)
            time.sleep(1.1)  # not twice in a second, Apache Kafka wants
            assert 0 < wire.sign_in("alice") <= SESSION_MS


def test_request_after_the_end_closes(wire: SecuredWire) -> None:
    time.sleep(SESSION_MS / 1000 + 0.1)
    wire.start("metadata", 12, topics=())
    assert wire.is_closed()


def test_session_of_bare_tokens_ends_too(secured: Secured) -> None:
    with secured.stranger() as wire:
        assert wire.call("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
        wire.send(frame(f"\0alice\0{password_of('alice')}".encode()))
        assert wire.receive_frame() == b""
        assert is_served(wire)
        time.sleep(SESSION_MS / 1000 + 0.1)
        wire.start("metadata", 12, topics=())
        assert wire.is_closed()


def test_handshake_after_the_end_is_not_too_late(wire: SecuredWire) -> None:
    time.sleep(SESSION_MS / 1000 + 0.1)
    assert wire.sign_in("alice") > 0
    assert is_served(wire)


def test_another_user_cannot_take_over_the_connection(secured: Secured) -> None:
    with secured.stranger() as wire:
        wire.sign_in("alice")
        with pytest.raises(SaslRefused) as refused:
            wire.sign_in("bob")
        assert refused.value.code == 58
        assert wire.is_closed()


def test_another_mechanism_is_refused(secured: Secured) -> None:
    with secured.stranger() as wire:
        wire.sign_in("alice")
        wire.start("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        with suppress(ConnectionEnded):
            if wire.receive("sasl_handshake", 1).error_code == 0:
                said = wire.call("sasl_authenticate", 2, auth_bytes=b"n,,n=alice,r=abc")
                assert said.error_code != 0
        assert wire.is_closed()


def test_wrong_password_ends_the_connection(secured: Secured) -> None:
    with secured.stranger() as wire:
        wire.sign_in("alice")
        with pytest.raises(SaslRefused):
            wire.sign_in("alice", "wrong")
        assert wire.is_closed()


def test_request_between_handshake_and_token(secured: Secured) -> None:
    """Nothing but the token is expected while a client authenticates again."""
    with secured.stranger() as wire:
        wire.sign_in("alice")
        wire.handshake("PLAIN")
        wire.start("metadata", 12, topics=())
        try:
            answer = wire.receive("metadata", 12)
        except ConnectionEnded:
            return
        assert not answer.brokers
        assert wire.is_closed()


def test_token_without_a_handshake(wire: SecuredWire) -> None:
    token = f"\0alice\0{password_of('alice')}".encode()
    answer = wire.call("sasl_authenticate", 2, auth_bytes=token)
    assert answer.error_code == 34


@pytest.mark.parametrize(
    "client",
    [
        *client_parameters("confluent", "kafka-python", "aiokafka"),
        pytest.param("java", marks=[pytest.mark.java, pytest.mark.slow]),
    ],
    indirect=True,
)
@pytest.mark.slow
def test_member_that_renews_its_session_loses_nothing(
    secured: Secured, client: Any, tmp_path: Any
) -> None:
    """Several sessions long; aiokafka, which does not renew them, connects again."""
    topic = f"renewed-{client.name}"
    with secured.wire(ADMIN) as admin:
        fields = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        admin.call("create_topics", 7, topics=[fields], timeout=60_000)

        def leads() -> bool:
            answer = admin.call("metadata", 12, topics=[{"name": topic}]).topics[0]
            return bool(answer.error_code == 0 and answer.partitions[0].error_code == 0)

        wait_until(leads)
    config = config_of(client, by_password(secured, "PLAIN"), tmp_path)
    address = secured.address("SASL_SSL")
    member = client.join(address, topic, f"group-{client.name}", config)
    values: list[bytes] = []
    try:
        member.wait_until(lambda it: it.partitions == {0})
        deadline = time.monotonic() + 4 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            sent = [
                Record(key=b"k", value=f"{len(values) + index}".encode(), partition=0)
                for index in range(5)
            ]
            client.produce(address, topic, sent, config=config)
            values += [record.value or b"" for record in sent]
        member.wait_until(
            lambda it: {record.value for record in it.records} >= set(values), PATIENCE_SECONDS
        )
        assert [record.value for record in member.records] == values
    finally:
        member.kill()
