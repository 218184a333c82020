"""Conditional appends over the wire: the answers, the setting, and the clients that people use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import PolicyViolationError
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaProducer
from kafka.errors import PolicyViolationError as KafkaPythonViolation

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import create_topic, produce
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.transactional import wait_for_markers
from tests.peers.wire import Wire
from tests.storage.versioned import versioned_batch

VERSION = "millstream-version"


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(wire: Wire, millstream: SharedBroker) -> str:
    name = millstream.unique_topic()
    create_topic(wire, name, millstream_conditional_append="version", retention_ms="-1")
    return name


def alter(millstream: SharedBroker, topic: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": millstream.bootstrap_servers})
    entry = ConfigEntry(
        "millstream.conditional.append", value, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
def test_conflict_is_answered_with_the_record_and_the_reason(
    wire: Wire, topic: str, version: int
) -> None:
    for number in ("1", "2"):  # the second by the template of the first
        batch = versioned_batch((b"a", number), (b"b", number))
        assert produce(wire, topic, batch, version=version).error_code == 0
    wrong = versioned_batch((b"a", "3"), (b"b", "2"))
    for _ in range(2):
        answer = produce(wire, topic, wrong, version=version)
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert answer.base_offset == -1
        if version >= 8:
            (error,) = answer.record_errors
            assert error.batch_index == 1
            assert error.batch_index_error_message == (
                "version conflict: the record has version 2, its key is at version 2 (offset 3)"
            )
            assert answer.error_message == error.batch_index_error_message
    assert produce(wire, topic, versioned_batch((b"a", "3")), version=version).base_offset == 4


def test_version_zero_asks_for_the_version_of_a_key(wire: Wire, topic: str) -> None:
    produce(wire, topic, versioned_batch((b"a", "1"), (b"a", "2")))
    for key, state in ((b"a", "version 2 (offset 1)"), (b"new", "version 0 (offset -1)")):
        answer = produce(wire, topic, versioned_batch((key, "0")))
        assert answer.error_message.endswith(f"its key is at {state}")


def test_setting_can_be_changed_on_a_topic_with_records(
    millstream: SharedBroker, wire: Wire, topic: str
) -> None:
    produce(wire, topic, versioned_batch((b"a", "1")))
    alter(millstream, topic, "none")
    assert produce(wire, topic, versioned_batch((b"a", None), (b"b", "7"))).error_code == 0
    alter(millstream, topic, "version")
    answer = produce(wire, topic, versioned_batch((b"a", "1"), (b"b", "8")))
    while answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS:  # the log is being read
        answer = produce(wire, topic, versioned_batch((b"a", "1"), (b"b", "8")))
    assert (answer.error_code, answer.base_offset) == (0, 3)
    alter(millstream, topic, "offset")
    batch = versioned_batch((None, "5"), header="millstream-offset")
    assert produce(wire, topic, batch).base_offset == 5
    assert produce(wire, topic, batch).error_code == ErrorCode.POLICY_VIOLATION


def test_recreated_topic_begins_without_versions(
    millstream: SharedBroker, wire: Wire, topic: str
) -> None:
    produce(wire, topic, versioned_batch((b"a", "1")))
    admin = AdminClient({"bootstrap.servers": millstream.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    create_topic(wire, topic, millstream_conditional_append="version")
    assert produce(wire, topic, versioned_batch((b"a", "2"))).error_code != 0
    assert produce(wire, topic, versioned_batch((b"a", "1"))).error_code == 0


# Clients


def send(producer: Producer, topic: str, key: str, version: int) -> KafkaError | None:
    """Produce one record and wait; returns its error."""
    outcome: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        outcome.append(error)

    producer.produce(topic, b"x", key, headers={VERSION: str(version)}, on_delivery=delivered)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return outcome[0]


@pytest.mark.parametrize("idempotent", [False, True])
def test_confluent_kafka_goes_on_after_a_conflict(
    millstream: SharedBroker, topic: str, idempotent: bool
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": millstream.bootstrap_servers,
            "enable.idempotence": idempotent,
            "linger.ms": 0,
        }
    )
    assert send(producer, topic, "a", 1) is None
    error = send(producer, topic, "a", 1)
    assert error is not None
    assert error.code() == KafkaError.POLICY_VIOLATION
    assert send(producer, topic, "a", 2) is None
    assert send(producer, topic, "b", 1) is None


def test_transaction_holds_its_keys_until_it_ends(millstream: SharedBroker, topic: str) -> None:
    config = {"bootstrap.servers": millstream.bootstrap_servers, "linger.ms": 0}
    other = Producer(config)
    for key, commit in (("committed", True), ("aborted", False)):
        producer = Producer(config | {"transactional.id": f"{topic}-{key}"})
        producer.init_transactions()
        producer.begin_transaction()
        assert send(producer, topic, key, 1) is None
        assert send(producer, topic, key, 2) is None
        assert send(other, topic, key, 1) is not None
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        wait_for_markers(millstream.bootstrap_servers)
        assert send(other, topic, key, 3 if commit else 1) is None


def test_reader_sees_the_version_of_each_record(millstream: SharedBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": millstream.bootstrap_servers})
    for version in (1, 2, 3):
        assert send(producer, topic, "a", version) is None
    consumer = Consumer(
        {
            "bootstrap.servers": millstream.bootstrap_servers,
            "group.id": millstream.unique_group(),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    seen = [consumer.consume(1, PATIENCE_SECONDS)[0] for _ in range(3)]
    consumer.close()
    assert [dict(message.headers() or ())[VERSION] for message in seen] == [b"1", b"2", b"3"]


def test_kafka_python_reports_a_conflict(millstream: SharedBroker, topic: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=millstream.bootstrap_servers, enable_idempotence=False
    )

    def send(version: int) -> object:
        headers = [(VERSION, str(version).encode())]
        return producer.send(topic, b"x", b"a", headers=headers).get(PATIENCE_SECONDS)

    send(1)
    with pytest.raises(KafkaPythonViolation):
        send(1)
    send(2)
    producer.close()


def test_aiokafka_reports_a_conflict(millstream: SharedBroker, topic: str) -> None:
    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=millstream.bootstrap_servers, enable_idempotence=False
        )
        await producer.start()
        try:
            for version, fits in ((1, True), (1, False), (2, True)):
                headers = [(VERSION, str(version).encode())]
                sent = producer.send_and_wait(topic, b"x", b"a", headers=headers)
                if fits:
                    await sent
                else:
                    with pytest.raises(PolicyViolationError):
                        await sent
        finally:
            await producer.stop()

    asyncio.run(scenario())
