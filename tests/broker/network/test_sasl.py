"""Connections of SASL listeners: real clients, and peers that do not follow the rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer

from millstream import Broker
from millstream.protocol.apis import APIS
from millstream.security.attempts import TOLERATED
from millstream.security.login import make_login
from tests.broker.network.test_listener import exchange_records
from tests.broker.pki import Pki, make_pki
from tests.peers.patience import wait_until
from tests.peers.wire import ConnectionEnded, Wire, request_frame

USER, PASSWORD = "ann", "se,cr=et"
ALL = "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
REFUSED = 58
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def broker(pki: Pki) -> Iterator[Broker]:
    config = {
        "listeners": ALL,
        "connection.failed.authentication.delay.ms": 20,
        **pki.settings,
    }
    with Broker.start(config=config) as started:
        add_user(started)
        yield started


@pytest.fixture(scope="module")
def hasty() -> Iterator[Broker]:
    """It waits for three seconds."""
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "millstream.authentication.timeout.ms": 3000,
    }
    with Broker.start(config=config) as started:
        add_user(started)
        yield started


@pytest.fixture
def fresh() -> Iterator[Broker]:
    """Nobody has failed there: after some failures an address has to wait."""
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "connection.failed.authentication.delay.ms": 20,
    }
    with Broker.start(config=config) as started:
        add_user(started)
        yield started


def add_user(broker: Broker, user: str = USER) -> None:
    admin = AdminClient({"bootstrap.servers": broker.addresses["PLAINTEXT"]})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([change])[user].result(PATIENCE_SECONDS)


def sign_in(wire: Wire, user: str = USER, password: str = PASSWORD, version: int = 2) -> Any:
    """With SCRAM-SHA-256; returns the last answer."""
    login = make_login("SCRAM-SHA-256", username=user, password=password)
    wire.call("sasl_handshake", 1, mechanism=login.mechanism)
    token: bytes | None = login.begin()
    while token is not None:
        answer = wire.call("sasl_authenticate", version, auth_bytes=token)
        if answer.error_code:
            return answer
        token = login.respond(answer.auth_bytes)
    return answer


def is_cut(wire: Wire) -> bool:
    """Closed by the broker within the limit."""
    wire.socket.settimeout(PATIENCE_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while wire.socket.recv(4096):
            pass
    return True


# Real clients


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_signs_in(broker: Broker, pki: Pki, mechanism: str) -> None:
    settings = {
        "bootstrap.servers": broker.addresses["SASL_SSL"],
        **pki.librdkafka,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    exchange_records(settings, f"sasl-{mechanism}")


def test_kafka_python_signs_in(broker: Broker, pki: Pki) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.addresses["SASL_SSL"],
        security_protocol="SASL_SSL",
        ssl_cafile=str(pki.authority_file),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    )
    assert producer.send("kafka-python", b"x").get(PATIENCE_SECONDS).offset == 0
    producer.close()


def test_aiokafka_signs_in(broker: Broker, pki: Pki) -> None:
    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.addresses["SASL_SSL"],
            security_protocol="SASL_SSL",
            ssl_context=pki.client_context(),
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username=USER,
            sasl_plain_password=PASSWORD,
        )
        await producer.start()
        assert (await producer.send_and_wait("aiokafka", b"x")).offset == 0
        await producer.stop()

    asyncio.run(scenario())


def test_wrong_password_is_told_to_the_client(fresh: Broker) -> None:
    refused: list[str] = []
    admin = AdminClient(
        {
            "bootstrap.servers": fresh.addresses["SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": "wrong",
            "error_cb": lambda error: refused.append(str(error)),
        }
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    wait_until(lambda: bool(admin.poll(0.01) or refused))
    assert "invalid credentials" in "".join(refused)


# Rules


def test_nothing_but_sasl_is_served_before_authentication(broker: Broker) -> None:
    for api in APIS.values():
        if api.name in ("api_versions", "sasl_handshake", "sasl_authenticate"):
            continue
        with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
            head = struct.pack(">hhih", api.key, api.max_version, 1, 1) + b"x" + b"\0" * 20
            wire.socket.sendall(struct.pack(">i", len(head)) + head)
            assert wire.is_closed(), api.name


def test_api_versions_is_answered_once(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        answer = wire.call("api_versions", 3, client_software_name="x", client_software_version="1")
        assert {17, 36} <= {int(it.api_key) for it in answer.api_keys}
        wire.socket.sendall(request_frame("api_versions", 0))
        assert wire.is_closed()


def test_unknown_version_of_api_versions_does_not_count(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        head = struct.pack(">hhih", 18, 99, 1, 1) + b"x\0"
        wire.socket.sendall(struct.pack(">i", len(head)) + head)
        assert wire.receive_frame()[4:6] == struct.pack(">h", 35)
        assert wire.call("api_versions", 0).error_code == 0
        assert sign_in(wire).error_code == 0


def test_requests_are_served_after_authentication(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        assert wire.call("api_versions", 0).error_code == 0
        assert sign_in(wire).error_code == 0
        assert wire.call("api_versions", 0).error_code == 0
        assert wire.call("metadata", 1, topics=None).brokers


@pytest.mark.parametrize("version", [0, 1, 2])
def test_each_version_authenticates(broker: Broker, version: int) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        assert sign_in(wire, version=version).error_code == 0
        assert wire.call("metadata", 1, topics=None).brokers


def test_client_without_headers_authenticates(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        login = make_login("SCRAM-SHA-256", username=USER, password=PASSWORD)
        wire.call("sasl_handshake", 0, mechanism=login.mechanism)
        token: bytes | None = login.begin()
        while token is not None:
            wire.socket.sendall(struct.pack(">i", len(token)) + token)
            token = login.respond(wire.receive_frame())
        assert wire.call("metadata", 1, topics=None).brokers


def test_client_without_headers_is_cut_if_it_fails(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        wire.call("sasl_handshake", 0, mechanism="SCRAM-SHA-256")
        wire.socket.sendall(struct.pack(">i", 7) + b"garbage")
        assert is_cut(wire)


def test_audit_names_who_failed_without_headers(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "connection.failed.authentication.delay.ms": 20,
        "millstream.audit.log": f"file:{audit}",
    }
    with Broker.start(config=config) as broker, Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        login = make_login("SCRAM-SHA-256", username="eve", password=PASSWORD)
        wire.call("sasl_handshake", 0, mechanism=login.mechanism)
        for token in (login.begin(), None):
            token = token or login.respond(wire.receive_frame()) or b""
            wire.socket.sendall(struct.pack(">i", len(token)) + token)
        assert is_cut(wire)
    (event,) = map(json.loads, audit.read_text().splitlines())
    assert (event["event"], event["principal"]) == ("authentication", "User:eve")


def test_unknown_mechanism_is_told_those_that_there_are(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        answer = wire.call("sasl_handshake", 1, mechanism="GSSAPI")
        assert answer.error_code == 33
        assert "SCRAM-SHA-256" in answer.mechanisms
        assert is_cut(wire)


@pytest.mark.parametrize(("user", "password"), [(USER, "hunter2"), ("nobody", "hunter2")])
def test_failure_says_the_same_whether_the_user_exists_or_not(
    fresh: Broker, user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "millstream.security"),
        Wire(fresh.addresses["SASL_PLAINTEXT"]) as wire,
    ):
        answer = sign_in(wire, user, password)
        assert answer.error_code == REFUSED
        assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in answer.error_message
        assert is_cut(wire)
    assert [record.name for record in caplog.records] == ["millstream.security"]
    assert password not in caplog.text


def test_failure_is_answered_after_the_delay() -> None:
    config = {"listeners": ALL.split(",")[0], "connection.failed.authentication.delay.ms": 500}
    with (
        Broker.start(config=config) as broker,
        Wire(broker.addresses["SASL_PLAINTEXT"]) as wire,
    ):
        began = time.monotonic()
        assert sign_in(wire).error_code == REFUSED
        assert time.monotonic() - began >= 0.5


def test_what_follows_a_failure_is_not_handled(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        frames = [
            request_frame("sasl_handshake", 1, 1, mechanism="SCRAM-SHA-256"),
            request_frame("sasl_authenticate", 2, 2, auth_bytes=b"n,,n=x,r="),
            request_frame("metadata", 1, 3, topics=None),
        ]
        wire.socket.sendall(b"".join(frames))
        received = [struct.unpack(">i", wire.receive_frame()[:4])[0] for _ in range(2)]
        assert received == [1, 2]
        assert wire.is_closed()


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_long_frame_before_authentication_is_refused(
    broker: Broker, pki: Pki, listener: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = broker.addresses[listener].partition(":")
    with caplog.at_level(logging.WARNING, "millstream.connection"):
        with socket.create_connection((host, int(port))) as raw:
            peer = raw
            if listener == "SASL_SSL":
                peer = pki.client_context().wrap_socket(raw, server_hostname=host)
            peer.sendall(struct.pack(">i", 524_289))
            peer.settimeout(PATIENCE_SECONDS)
            assert peer.recv(1) == b""
            peer.close()
        wait_until(lambda: "sasl.server.max.receive.size" in caplog.text)


def test_long_frames_are_accepted_after_authentication(broker: Broker) -> None:
    with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
        sign_in(wire)
        topics = [{"name": f"{'x' * 200}-{number}"} for number in range(3000)]
        wire.call("metadata", 4, topics=topics, allow_auto_topic_creation=False)


def test_peer_that_does_not_authenticate_in_time_is_cut(hasty: Broker) -> None:
    with contextlib.ExitStack() as stack:
        address = hasty.addresses["SASL_PLAINTEXT"]
        silent, half, slow = (stack.enter_context(Wire(address)) for _ in range(3))
        half.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        with contextlib.suppress(ConnectionError):
            for byte in request_frame("sasl_handshake", 1, mechanism="x" * 100):
                slow.socket.sendall(bytes([byte]))
                time.sleep(0.02)
        assert all(is_cut(wire) for wire in (silent, half, slow))


def test_authenticated_client_is_not_cut(hasty: Broker) -> None:
    with Wire(hasty.addresses["SASL_PLAINTEXT"]) as wire:
        sign_in(wire)
        time.sleep(3.5)
        assert wire.call("metadata", 1, topics=None).brokers


def test_sasl_on_a_listener_without_it_is_an_illegal_state(broker: Broker) -> None:
    with Wire(broker.addresses["PLAINTEXT"]) as wire:
        assert wire.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256").error_code == 34
        assert wire.call("sasl_authenticate", 2, auth_bytes=b"x").error_code == 34
        assert wire.call("metadata", 1, topics=None).brokers


def test_addresses_that_guess_have_to_wait() -> None:
    config = {"listeners": ALL.split(",")[0], "connection.failed.authentication.delay.ms": 0}
    with Broker.start(config=config) as broker:

        def guess() -> float:
            began = time.monotonic()
            with Wire(broker.addresses["SASL_PLAINTEXT"]) as wire:
                assert sign_in(wire).error_code == REFUSED
            return time.monotonic() - began

        # Ten are answered at once; then each takes a turn of its own, and the turns get longer.
        assert any(guess() > 0.5 for _ in range(40))


def to_the_proof(wire: Wire, user: str, password: str) -> bytes:
    """Authenticate with SCRAM as far as the proof, which is returned."""
    login = make_login("SCRAM-SHA-256", username=user, password=password)
    wire.call("sasl_handshake", 1, mechanism=login.mechanism)
    answer = wire.call("sasl_authenticate", 2, auth_bytes=login.begin())
    proof = login.respond(answer.auth_bytes)
    assert proof is not None
    return proof


def answers_to(wires: list[Wire], seconds: float) -> int:
    """How many get an answer within that time."""
    deadline = time.monotonic() + seconds
    count = 0
    for wire in wires:
        wire.socket.settimeout(max(0.001, deadline - time.monotonic()))
        with contextlib.suppress(TimeoutError, ConnectionEnded, ConnectionError):
            wire.receive_frame()
            count += 1
    return count


def test_guesses_that_are_prepared_on_many_connections_take_turns(fresh: Broker) -> None:
    """All connections send their first message before anyone has failed, then all their proofs."""
    address = fresh.addresses["SASL_PLAINTEXT"]
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(address)) for _ in range(TOLERATED + 30)]
        proofs = [to_the_proof(wire, "nobody", "guess") for wire in wires]
        for wire, proof in zip(wires, proofs, strict=True):
            wire.socket.sendall(request_frame("sasl_authenticate", 2, auth_bytes=proof))
        for wire in wires[:TOLERATED]:
            wire.receive_frame()
        assert answers_to(wires[TOLERATED:], seconds=1) <= 10  # there are turns until 30 s later


def test_who_guesses_does_not_keep_out_those_who_have_logged_in(
    fresh: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    address = fresh.addresses["SASL_PLAINTEXT"]
    with Wire(address) as wire:
        assert sign_in(wire).error_code == 0
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(address)) for _ in range(TOLERATED + 30)]
        for wire in wires:
            proof = to_the_proof(wire, "nobody", "guess")
            wire.socket.sendall(request_frame("sasl_authenticate", 2, auth_bytes=proof))
        # So many wait that the last are closed without an answer, which clients take as passing.
        wait_until(lambda: "too many authentications" in caplog.text)
        with pytest.raises((ConnectionEnded, ConnectionError)):
            wires[-1].receive_frame()
        with Wire(address) as wire:
            assert sign_in(wire).error_code == 0


def test_addresses_that_are_exempt_take_no_turns(fresh: Broker) -> None:
    """Otherwise the last of these would be closed without an answer."""
    admin = AdminClient({"bootstrap.servers": fresh.addresses["PLAINTEXT"]})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    resource.add_incremental_config(
        ConfigEntry(
            "millstream.authentication.delay.exempt",
            "127.0.0.0/8",
            incremental_operation=AlterConfigOpType.SET,
        )
    )
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
    with contextlib.ExitStack() as stack:
        address = fresh.addresses["SASL_PLAINTEXT"]
        wires = [stack.enter_context(Wire(address)) for _ in range(TOLERATED + 30)]
        for wire in wires:
            proof = to_the_proof(wire, "nobody", "guess")
            wire.socket.sendall(request_frame("sasl_authenticate", 2, auth_bytes=proof))
        for wire in wires:
            wire.receive_frame()


# Authenticating again


@pytest.fixture(scope="module")
def sessions() -> Iterator[Broker]:
    config = {
        "listeners": "SHORT://127.0.0.1:0,LONG://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "SHORT:SASL_PLAINTEXT,LONG:SASL_PLAINTEXT,"
        "PLAINTEXT:PLAINTEXT",
        "listener.name.short.connections.max.reauth.ms": 1200,
        "listener.name.long.connections.max.reauth.ms": 6000,
        "listener.name.long.sasl.server.max.receive.size": 2000,
        "connection.failed.authentication.delay.ms": 0,
    }
    with Broker.start(config=config) as started:
        add_user(started)
        add_user(started, "bob")
        yield started


def test_session_has_a_lifetime_and_is_renewed(sessions: Broker) -> None:
    with Wire(sessions.addresses["LONG"]) as wire:
        for _ in range(2):
            answer = sign_in(wire)
            assert answer.error_code == 0
            assert answer.session_lifetime.total_seconds() == 6
            assert wire.call("metadata", 1, topics=None).brokers
            time.sleep(1.1)


def test_request_after_the_session_closes_the_connection(sessions: Broker) -> None:
    with Wire(sessions.addresses["SHORT"]) as wire:
        sign_in(wire)
        time.sleep(1.3)
        with pytest.raises((ConnectionEnded, ConnectionError)):
            wire.call("metadata", 1, topics=None)


def test_client_may_renew_after_the_session(sessions: Broker) -> None:
    with Wire(sessions.addresses["SHORT"]) as wire:
        sign_in(wire)
        time.sleep(1.3)
        assert sign_in(wire).error_code == 0


def test_token_without_a_handshake_is_an_illegal_state(sessions: Broker) -> None:
    with Wire(sessions.addresses["LONG"]) as wire:
        sign_in(wire)
        assert wire.call("sasl_authenticate", 2, auth_bytes=b"").error_code == 34


def test_other_user_cannot_take_over_a_connection(sessions: Broker) -> None:
    with Wire(sessions.addresses["LONG"]) as wire:
        sign_in(wire)
        time.sleep(1.1)
        answer = sign_in(wire, "bob")
        assert answer.error_code == REFUSED
        assert is_cut(wire)


def test_other_requests_wait_for_the_end_of_a_renewal(sessions: Broker) -> None:
    with Wire(sessions.addresses["LONG"]) as wire:
        sign_in(wire)
        time.sleep(1.1)
        assert wire.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256").error_code == 0
        with pytest.raises((ConnectionEnded, ConnectionError)):
            wire.call("metadata", 1, topics=None)


def test_listener_has_its_own_limit_of_frames(
    sessions: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with Wire(sessions.addresses["LONG"]) as wire:
        wire.socket.sendall(struct.pack(">i", 2001))
        assert is_cut(wire)
    assert "sasl.server.max.receive.size" in caplog.text, "not because of the time"


def test_tokens_are_limited_when_a_session_is_renewed(sessions: Broker) -> None:
    with Wire(sessions.addresses["LONG"]) as wire:
        sign_in(wire)
        time.sleep(1.1)
        assert wire.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256").error_code == 0
        with pytest.raises((ConnectionEnded, ConnectionError)):
            wire.call("sasl_authenticate", 2, auth_bytes=b"x" * 2001)


@pytest.mark.slow
def test_librdkafka_renews_its_session(sessions: Broker) -> None:
    settings = {
        "bootstrap.servers": sessions.addresses["LONG"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    lost: list[str] = []
    admin = AdminClient({**settings, "error_cb": lambda error: lost.append(str(error))})
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        assert admin.list_topics(timeout=PATIENCE_SECONDS).brokers
        time.sleep(0.2)
    assert lost == []
