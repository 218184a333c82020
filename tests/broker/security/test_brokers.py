"""Brokers among themselves: TLS and SASL between them, in a cluster and among workers."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker
from millstream.broker.security.brokers import BrokerSecurity, broker_login, check_broker_login
from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError, MillstreamError
from millstream.testing.zookeeper import ZooKeeperProcess
from tests.broker.pki import Pki, make_pki
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import start_workers

USERS = 'user_broker="b-secret" user_ann="a-secret"'
PLAIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" '
    f'password="b-secret" {USERS};'
)
SCRAM = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="broker" password="b-secret";'
)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def sasl_settings(pki: Pki, mechanism: str) -> dict[str, str]:
    return {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": SCRAM,
        **pki.settings,
    }


def client(pki: Pki, bootstrap: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        **pki.librdkafka,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "a-secret",
    }


@contextlib.contextmanager
def cluster(
    zookeeper: ZooKeeperProcess, directory: Path, settings: dict[str, str]
) -> Iterator[list[Broker]]:
    """Three brokers with everything replicated to all."""
    common: dict[str, object] = {
        "zookeeper.connect": f"{zookeeper.address}/secured-{uuid.uuid4().hex}",
        "zookeeper.session.timeout.ms": 30_000,
        "default.replication.factor": 3,
        "min.insync.replicas": 3,
        "offsets.topic.replication.factor": 3,
        "offsets.topic.num.partitions": 2,
        **settings,
    }
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Broker.start(directory / str(number), {**common, "node.id": number})
            )
            for number in (1, 2, 3)
        ]


def exchange(settings: dict[str, str], topic: str, partitions: int, replicas: int) -> None:
    """Each record is on all replicas before it is acknowledged."""
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(PATIENCE_SECONDS)
    producer = Producer({**settings, "acks": "all", "enable.idempotence": True})
    refused: list[object] = []
    for number in range(300):
        producer.produce(
            topic,
            str(number),
            partition=number % partitions,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert refused == []
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < 300 and time.monotonic() < deadline:
        found += [int(message.value()) for message in consumer.consume(300, 1.0)]
    consumer.close()
    assert sorted(found) == list(range(300))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_secured_cluster_replicates(
    zookeeper: ZooKeeperProcess, pki: Pki, tmp_path: Path, mechanism: str
) -> None:
    with cluster(zookeeper, tmp_path, sasl_settings(pki, mechanism)) as brokers:
        bootstrap = ",".join(broker.bootstrap_servers for broker in brokers)
        exchange(client(pki, bootstrap), "replicated", partitions=3, replicas=3)


def test_cluster_with_certificates_replicates(
    zookeeper: ZooKeeperProcess, pki: Pki, tmp_path: Path
) -> None:
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required", **pki.settings}
    with cluster(zookeeper, tmp_path, settings) as brokers:
        bootstrap = ",".join(broker.bootstrap_servers for broker in brokers)
        clients = {"bootstrap.servers": bootstrap, **pki.librdkafka_with_certificate}
        exchange(clients, "replicated", partitions=3, replicas=3)


@pytest.mark.slow
def test_sessions_of_brokers_end_and_replication_goes_on(
    zookeeper: ZooKeeperProcess, pki: Pki, tmp_path: Path
) -> None:
    """They log in again, on new connections, before the session ends."""
    settings = {**sasl_settings(pki, "PLAIN"), "connections.max.reauth.ms": "3000"}
    with cluster(zookeeper, tmp_path, settings) as brokers:
        bootstrap = ",".join(broker.bootstrap_servers for broker in brokers)
        for number in range(3):
            exchange(client(pki, bootstrap), f"sessions-{number}", partitions=3, replicas=3)
            time.sleep(1.0)


def test_secured_workers_serve_together(pki: Pki, tmp_path: Path) -> None:
    settings = sasl_settings(pki, "PLAIN")
    workers = start_workers(tmp_path / "data", 2, settings)  # listeners win over its --listen
    try:
        exchange(client(pki, workers.bootstrap), "among-workers", partitions=6, replicas=1)
    finally:
        workers.stop()


def test_workers_without_a_login_are_refused(pki: Pki, tmp_path: Path) -> None:
    settings = sasl_settings(pki, "SCRAM-SHA-256")
    del settings["listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"]
    with pytest.raises(RuntimeError, match="brokers cannot log in to each other"):
        start_workers(tmp_path / "data", 2, settings)


def test_single_broker_needs_no_login(pki: Pki) -> None:
    settings = sasl_settings(pki, "SCRAM-SHA-256")
    del settings["listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"]
    with Broker.start(config=settings) as broker:
        exchange(client(pki, broker.bootstrap_servers), "single", partitions=1, replicas=1)


def test_login_is_that_of_the_mechanism(pki: Pki) -> None:
    config = BrokerConfig.from_values(sasl_settings(pki, "SCRAM-SHA-256"))
    assert broker_login(config) == ("broker", "b-secret")
    check_broker_login(config)
    plaintext = BrokerConfig.from_values({})
    assert broker_login(plaintext) is None
    check_broker_login(plaintext)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}, "which it has to have enabled"),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "which it has to have enabled"),
        ({"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": PLAIN}, "needs a user"),
    ],
)
def test_login_that_cannot_work_is_refused_with_what_to_do(
    pki: Pki, change: dict[str, str], message: str
) -> None:
    config = BrokerConfig.from_values({**sasl_settings(pki, "SCRAM-SHA-256"), **change})
    with pytest.raises(ConfigError, match=message) as refused:
        check_broker_login(config)
    assert "secret" not in str(refused.value)


def test_context_follows_the_files(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store.pem"
    store.write_text(pki.broker_store.read_text())
    config = BrokerConfig.from_values(
        {"listeners": "SSL://127.0.0.1:0", **pki.settings, "ssl.keystore.location": str(store)}
    )
    security = BrokerSecurity(lambda: config)
    first = security.tls_context()
    assert security.tls_context() is first
    store.write_text("broken")
    assert security.tls_context() is first
    assert "ssl.keystore.location" in caplog.text
    store.write_text(make_pki(tmp_path, name="other").broker_store.read_text())
    assert security.tls_context() is not first
    assert security.login() is None


def test_broken_files_at_the_start_are_refused(pki: Pki, tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    store.write_text("broken")
    config = {**sasl_settings(pki, "PLAIN"), "ssl.keystore.location": str(store)}
    with pytest.raises(MillstreamError, match=r"ssl\.keystore\.location"):
        Broker.start(config=config)
