"""Real clients come in with each mechanism, and hear why when they do not."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from tests.conformance.brokers import unique
from tests.conformance.conftest import client_parameters
from tests.conformance.rights import Acl, Operation, Resource, create_acls
from tests.conformance.test_clients import some_records
from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Client, ProgramError
from tests.peers.secured import (
    ADMIN,
    Certificates,
    ConnectionEnded,
    Secured,
    password_of,
)
from tests.peers.security import confluent, java

SECURED_USERS = ("alice", "bob")
PREFIXED = 4

every_client = pytest.mark.parametrize(
    "client",
    [
        *client_parameters("confluent", "kafka-python", "aiokafka"),
        pytest.param("java", marks=[pytest.mark.java, pytest.mark.slow]),
    ],
    indirect=True,
)


@pytest.fixture(scope="module")
def rights(secured: Secured) -> Secured:
    """Alice, who also has a certificate, and topics of hers. Bob has no rights."""
    secured.add_scram_user("alice")
    acls = []
    for user in ("alice", "CN=alice"):
        acls.append(Acl(user, Resource.TOPIC, "alice-", Operation.ALL, PREFIXED))
        acls.append(Acl(user, Resource.GROUP, "*", Operation.ALL))
    with secured.wire(ADMIN) as admin:
        create_acls(admin, acls)
    with secured.wire("alice") as wire:  # has them

        def sees() -> bool:
            answer = wire.call("metadata", 12, topics=[{"name": "alice-nothing"}])
            return bool(answer.topics[0].error_code != 29)

        wait_until(sees)
    return secured


def create_topic(secured: Secured) -> str:
    name = unique("alice-topic")
    with secured.wire(ADMIN) as admin:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        answer = admin.call("create_topics", 7, topics=[topic], timeout=60_000)
        assert answer.topics[0].error_code == 0, answer

        def leads() -> bool:
            found = admin.call("metadata", 12, topics=[{"name": name}]).topics[0]
            return bool(found.error_code == 0 and found.partitions[0].error_code == 0)

        wait_until(leads)
    return name


def by_password(secured: Secured, mechanism: str, user: str = "alice") -> dict[str, str]:
    return {
        "protocol": "SASL_SSL",
        "authority": str(secured.certificates.authority),
        "mechanism": mechanism,
        "user": user,
        "password": password_of(user),
    }


def by_token(secured: Secured, user: str = "alice", **claims: Any) -> dict[str, str]:
    return {
        "protocol": "SASL_SSL",
        "authority": str(secured.certificates.authority),
        "mechanism": "OAUTHBEARER",
        "token": secured.issuer.token(user, **claims),
    }


def by_certificate(secured: Secured, user: str = "alice") -> dict[str, str]:
    return {
        "protocol": "SSL",
        "authority": str(secured.certificates.authority),
        "store": str(secured.certificates.sign(user)),
    }


def without_tls(secured: Secured) -> dict[str, str]:
    security = by_password(secured, "SCRAM-SHA-256") | {"protocol": "SASL_PLAINTEXT"}
    del security["authority"]
    return security


WAYS: dict[str, Callable[[Secured], dict[str, str]]] = {
    "PLAIN": lambda secured: by_password(secured, "PLAIN"),
    "SCRAM-SHA-256": lambda secured: by_password(secured, "SCRAM-SHA-256"),
    "SCRAM-SHA-512": lambda secured: by_password(secured, "SCRAM-SHA-512"),
    "OAUTHBEARER": by_token,
    "certificate": by_certificate,
    "without TLS": without_tls,
}


def config_of(client: Any, security: dict[str, str], directory: Path) -> dict[str, Any]:
    if client.name == "java":
        return dict(java(security, directory))
    return {"security": security}


@contextmanager
def jvm_with_tokens(config: dict[str, Any]) -> Iterator[Client]:
    """A JVM is told when it starts which URLs it may get tokens from."""
    url = config["sasl.oauthbearer.token.endpoint.url"]
    prefix = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    options = [f"{prefix}.urls={url}", f"{prefix}.files={url.removeprefix('file://')}"]
    client = Client("java", lambda: java_program("ClientProgram", options=options))
    try:
        yield client
    finally:
        client.close()


@every_client
@pytest.mark.parametrize("way", WAYS)
def test_client_produces_and_consumes(
    rights: Secured, client: Any, way: str, tmp_path: Path
) -> None:
    topic = create_topic(rights)
    security = WAYS[way](rights)
    config = config_of(client, security, tmp_path)
    address = rights.address(security["protocol"])
    sent = some_records(20, partition=0)
    is_own = client.name == "java" and way == "OAUTHBEARER"
    with jvm_with_tokens(config) if is_own else nullcontext(client) as chosen:
        chosen.produce(address, topic, sent, config=config)
        received = chosen.consume(address, topic, len(sent), config=config)
    assert [record.content for record in received] == [record.content for record in sent]


@every_client
def test_client_without_rights_hears_it(rights: Secured, client: Any, tmp_path: Path) -> None:
    topic = create_topic(rights)
    config = config_of(client, by_password(rights, "PLAIN", "bob"), tmp_path)
    with pytest.raises(ProgramError, match=r"(?i)topic.?authorization"):
        client.produce(rights.address("SASL_SSL"), topic, some_records(1), config=config)


@every_client
def test_client_with_a_wrong_password_hears_it(
    rights: Secured, client: Any, tmp_path: Path
) -> None:
    security = by_password(rights, "SCRAM-SHA-256") | {"password": "wrong"}
    config = config_of(client, security, tmp_path)
    if client.name == "confluent":
        config["message.timeout.ms"] = 2000
    elif client.name == "kafka-python":
        config["bootstrap_timeout_ms"] = 2000
    with pytest.raises(ProgramError):
        client.produce(rights.address("SASL_SSL"), "alice-x", some_records(1), config=config)


def librdkafka(secured: Secured, security: dict[str, str], **more: Any) -> dict[str, Any]:
    address = secured.address(security["protocol"])
    return {"bootstrap.servers": address, "log_level": 0, **confluent(security), **more}


def connection_errors(settings: dict[str, Any]) -> list[str]:
    """What librdkafka says of its first attempts."""
    errors: list[str] = []
    admin = AdminClient(settings | {"error_cb": lambda error: errors.append(error.str())})
    wait_until(lambda: bool(admin.poll(0.1) or errors))
    return errors


@pytest.mark.slow
def test_librdkafka_tells_that_authentication_failed(rights: Secured) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        wrong = by_password(rights, mechanism) | {"password": "wrong"}
        assert "uthentication failed" in connection_errors(librdkafka(rights, wrong))[0]


@pytest.mark.parametrize(
    "claims",
    [
        {"seconds": -3600},
        {"aud": "someone else"},
        {"aud": None},
        {"iss": "https://elsewhere.example"},
        {"sub": None},
        {"exp": None},
    ],
    ids=lambda claims: "-".join(claims),
)
def test_token_that_is_not_valid_is_refused(rights: Secured, claims: dict[str, Any]) -> None:
    assert authenticates(rights, rights.issuer.token("alice"))
    assert not authenticates(rights, rights.issuer.token("alice", **claims))


def authenticates(secured: Secured, token: str) -> bool:
    with secured.stranger("SASL_SSL") as wire:
        wire.start_tls(secured.certificates.client_context())
        wire.handshake("OAUTHBEARER")
        said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answer = wire.call("sasl_authenticate", 2, auth_bytes=said)
        if answer.error_code == 0 and not answer.auth_bytes:
            return bool(wire.call("metadata", 12, topics=()).brokers)
        if answer.error_code == 0:  # a challenge says why, and the client has to give up
            answer = wire.call("sasl_authenticate", 2, auth_bytes=b"\x01")
        assert answer.error_code == 58
        assert token not in str(answer)
        return False


def test_token_that_was_changed_is_refused(rights: Secured) -> None:
    head, claims, signature = rights.issuer.token("alice").split(".")
    _, other_claims, other_signature = rights.issuer.token(ADMIN).split(".")
    assert not authenticates(rights, f"{head}.{other_claims}.{signature}")
    assert not authenticates(rights, f"{head}.{claims}.{other_signature}")
    assert not authenticates(rights, f"{head}.{other_claims}.")
    nobody_signed = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
    assert not authenticates(rights, f"{nobody_signed}.{other_claims}.")
    assert not authenticates(rights, f"{nobody_signed}.{other_claims}.{signature}")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority with the same name."""
    return Certificates(tmp_path_factory.mktemp("strangers"))


def tls_metadata(secured: Secured, context: ssl.SSLContext) -> bool:
    """Whether a connection with this certificate is served."""
    try:
        with secured.stranger("SSL") as wire:
            wire.start_tls(context)
            return bool(wire.call("metadata", 12, topics=()).brokers)
    except (ssl.SSLError, ConnectionEnded, ConnectionError):
        return False


def test_certificates_decide_who_comes_in(rights: Secured, strangers: Certificates) -> None:
    ours = rights.certificates
    assert tls_metadata(rights, ours.client_context(ours.sign("alice")))
    assert not tls_metadata(rights, ours.client_context())
    assert not tls_metadata(rights, ours.client_context(ours.sign("late", expired=True)))
    assert not tls_metadata(rights, ours.client_context(strangers.sign("alice")))


def test_client_does_not_trust_a_stranger(rights: Secured, strangers: Certificates) -> None:
    security = by_password(rights, "PLAIN") | {"authority": str(strangers.authority)}
    assert "certificate" in connection_errors(librdkafka(rights, security))[0]
    with (
        rights.stranger("SASL_SSL") as wire,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        wire.start_tls(strangers.client_context())


def test_client_notices_another_host(rights: Secured) -> None:
    with (
        rights.stranger("SASL_SSL") as wire,
        pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"),
    ):
        wire.start_tls(rights.certificates.client_context(), "elsewhere.example")


def test_old_tls_is_refused(rights: Secured) -> None:
    context = rights.certificates.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with rights.stranger("SASL_SSL") as wire, pytest.raises(ssl.SSLError):
        wire.start_tls(context)


def test_plain_client_at_a_listener_with_tls(rights: Secured) -> None:
    for listener in ("SSL", "SASL_SSL"):
        with rights.stranger(listener) as wire:
            wire.start("api_versions", 0)
            answer = b""
            with suppress(ConnectionError):
                while chunk := wire.socket.recv(1000):
                    answer += chunk
        assert len(answer) < 20  # at most an alert of TLS


def set_right(secured: Secured, user: str, topic: str, allowed: bool) -> None:
    acl = Acl(user, Resource.TOPIC, topic, Operation.READ)
    with secured.wire(ADMIN) as admin:
        if allowed:
            create_acls(admin, [acl])
            return
        answer = admin.call(
            "delete_acls",
            3,
            filters=[
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": topic,
                    "pattern_type_filter": 3,
                    "principal_filter": f"User:{user}",
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ],
        )
        assert len(answer.filter_results[0].matching_acls) == 1, answer


@pytest.fixture
def bobs_topic(rights: Secured) -> str:
    topic = create_topic(rights)
    group = Acl("bob", Resource.GROUP, "bobs", Operation.READ)
    with rights.wire(ADMIN) as admin:
        create_acls(admin, [group])
    set_right(rights, "bob", topic, allowed=True)
    return topic


@pytest.mark.slow
def test_right_that_is_taken_away_while_consuming(rights: Secured, bobs_topic: str) -> None:
    """The consumer is told; when it has the right again it goes on where it was."""
    alice = Producer(librdkafka(rights, by_password(rights, "PLAIN")))
    bob = Consumer(
        librdkafka(rights, by_password(rights, "PLAIN", "bob"))
        | {"group.id": "bobs", "auto.offset.reset": "earliest"}
    )
    bob.subscribe([bobs_topic])

    def send(*values: bytes) -> None:
        for value in values:
            alice.produce(bobs_topic, value)
        assert alice.flush(PATIENCE_SECONDS) == 0

    def next_result() -> bytes | int:
        """A value, or the code of an error."""
        message = None
        while message is None:
            message = bob.poll(1)
        error = message.error()
        return error.code() if error is not None else message.value() or b""

    def read(value: bytes) -> None:
        while (result := next_result()) != value:
            assert isinstance(result, int), f"{result!r} came before {value!r}"

    send(b"1", b"2")
    read(b"1")
    read(b"2")
    set_right(rights, "bob", bobs_topic, allowed=False)
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    wait_until(lambda: next_result_or_none(bob) == denied)
    send(b"3")
    set_right(rights, "bob", bobs_topic, allowed=True)
    read(b"3")
    bob.close()


def next_result_or_none(consumer: Consumer) -> int | bytes | None:
    message = consumer.poll(0.5)
    if message is None:
        return None
    error = message.error()
    return error.code() if error is not None else message.value()
