"""Rights with real users, over several processes: every worker knows them, and checks them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from millstream.config.authorization import STANDARD_AUTHORIZER
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, free_port, start_millstream, start_workers

pytestmark = pytest.mark.slow

USERS = ("broker", "alice", "eve")
TOPIC = "orders"
PARTITIONS = 6


def plain_users() -> str:
    entries = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{module} required username="broker" password="broker-secret" {entries};'


SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.jaas.config": plain_users(),
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:broker",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(params=["workers", "cluster"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Two processes, by the address of one of them: servers, or brokers of a cluster."""
    if request.param == "workers":
        server = start_workers(tmp_path / "data", 2, SETTINGS)
        yield server
        server.stop()
        return
    hosts = f"{request.getfixturevalue('zookeeper').address}/e2e-{uuid.uuid4().hex}"
    running: list[Server] = []
    try:
        for node_id in (1, 2):
            port = free_port()
            settings = SETTINGS | {
                "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
                "zookeeper.connect": hosts,
                "zookeeper.connection.timeout.ms": str(int(PATIENCE_SECONDS * 1000)),
                "node.id": str(node_id),
                "default.replication.factor": "2",
                "min.insync.replicas": "2",  # a record that nobody replicates is refused
            }
            running.append(start_millstream(tmp_path / f"{node_id}", settings, port=port))
        yield running[0]
    finally:
        for server in running:
            server.kill()


def client(server: Server, user: str, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
        **settings,
    }


def allowed(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip


def produce(server: Server, user: str, transactional_id: str | None = None) -> KafkaError | None:
    """One record to each partition, in a transaction if there is an id. The first error."""
    settings: dict[str, Any] = {"message.timeout.ms": PATIENCE_SECONDS * 1000}
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
        settings["transaction.timeout.ms"] = settings["message.timeout.ms"]
    producer = Producer(client(server, user, **settings))
    errors: list[KafkaError] = []
    try:
        if transactional_id is not None:
            producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC,
                user.encode(),
                partition=partition,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(PATIENCE_SECONDS) == 0
        if transactional_id is not None and not errors:
            producer.commit_transaction(PATIENCE_SECONDS)
    except KafkaException as error:
        return error.args[0]  # type: ignore[no-any-return]
    return errors[0] if errors else None


def read(server: Server, user: str, count: int) -> list[bytes] | KafkaError:
    """So many committed records, or the first error."""
    settings = {
        "group.id": "readers", "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }  # fmt: skip
    consumer = Consumer(client(server, user, **settings))
    consumer.subscribe([TOPIC])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() in (
                    KafkaError.TOPIC_AUTHORIZATION_FAILED,
                    KafkaError.GROUP_AUTHORIZATION_FAILED,
                ):
                    return error
                continue
            found.append(message.value())
        return found
    finally:
        consumer.close()


def test_rights_count_at_every_process(servers: Server) -> None:
    """Also transactions, whose coordinator and partitions are at different ones, and replication:
    they ask each other as `broker`."""
    admin = AdminClient(client(servers, "broker"))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC].result(PATIENCE_SECONDS)
    refused = produce(servers, "alice")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    entries = [
        allowed(ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
        allowed(ResourceType.TOPIC, TOPIC, AclOperation.READ),
        allowed(ResourceType.GROUP, "readers", AclOperation.READ),
        allowed(ResourceType.TRANSACTIONAL_ID, "alice-1", AclOperation.WRITE),
    ]
    for made in admin.create_acls(entries).values():
        made.result(PATIENCE_SECONDS)
    wait_until(lambda: produce(servers, "alice") is None)
    assert produce(servers, "alice", "alice-1") is None
    not_hers = produce(servers, "alice", "bob-1")
    assert not_hers is not None
    assert not_hers.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    eve = produce(servers, "eve")
    assert eve is not None
    assert eve.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    found = read(servers, "alice", 2 * PARTITIONS)
    assert isinstance(found, list)
    assert set(found) == {b"alice"}
    assert len(found) >= 2 * PARTITIONS
    stolen = read(servers, "eve", 1)
    assert isinstance(stolen, KafkaError)
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    for removed in admin.delete_acls([everything]).values():
        assert len(removed.result(PATIENCE_SECONDS)) == len(entries)
    wait_until(lambda: produce(servers, "alice") is not None)
