"""Real clients produce, consume and transform in transactions, and read what others committed.

confluent-kafka, kafka-python, aiokafka, kafkajs and the older Java client speak protocol 1,
the newer Java client and franz-go protocol 2.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import client_parameters, prepared
from tests.conformance.test_transactions import log_of
from tests.conformance.test_transactions_offsets import is_unstable, offset_of
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Record
from tests.peers.transactional import NO_ERROR, TransactionalProducer

PROTOCOLS = {
    "confluent": 1,
    "kafka-python": 1,
    "aiokafka": 1,
    "kafkajs": 1,
    "java-3.9": 1,
    "java": 2,
    "franz-go": 2,
}
TRANSFORMERS = [name for name in PROTOCOLS if name != "kafkajs"]
READ_COMMITTED: dict[str, dict[str, str]] = {
    "confluent": {"isolation.level": "read_committed"},
    "java": {"isolation.level": "read_committed"},
    "java-3.9": {"isolation.level": "read_committed"},
    "franz-go": {"isolation.level": "read_committed"},
    "kafka-python": {"isolation_level": "read_committed"},
    "aiokafka": {"isolation_level": "read_committed"},
    "kafkajs": {},  # its default
}
STORY = [
    (True, [b"a1", b"a2"]),
    (False, [b"b1", b"b2", b"b3"]),
    (False, [b"c1"]),
    (True, [b"d1"]),
    (False, [b"e1"]),
]
COMMITTED = [b"a1", b"a2", b"d1"]
LAST = b"the end"


def finish(broker: BrokerUnderTest, topic: str) -> None:
    """A plain record behind all others: a reader that has it has seen everything."""
    prepared("confluent").produce(broker.bootstrap, topic, [Record(value=LAST, partition=0)])


def read_committed(broker: BrokerUnderTest, name: str, topic: str, count: int) -> list[bytes]:
    records = prepared(name).consume(broker.bootstrap, topic, count, READ_COMMITTED[name])
    return [record.value for record in records]


@pytest.mark.parametrize("client", client_parameters(*PROTOCOLS), indirect=True)
def test_client_commits_and_aborts(broker: BrokerUnderTest, client: Any) -> None:
    topic = broker.create_topic()
    client.transact(broker.bootstrap, topic, unique("transactional"), STORY)
    finish(broker, topic)
    expected = [*COMMITTED, LAST]
    assert read_committed(broker, client.name, topic, len(expected)) == expected
    assert read_committed(broker, "confluent", topic, len(expected)) == expected
    every = [value for _, values in STORY for value in values]
    records = prepared("kafka-python").consume(broker.bootstrap, topic, len(every) + 1)
    assert [record.value for record in records] == [*every, LAST]


@pytest.mark.parametrize("client", client_parameters(*PROTOCOLS), indirect=True)
def test_client_speaks_the_protocol_it_is_known_for(broker: BrokerUnderTest, client: Any) -> None:
    """By protocol 2 every transaction has an epoch of its own."""
    topic = broker.create_topic()
    client.transact(broker.bootstrap, topic, unique("transactional"), [(True, [b"x"])] * 3)
    wait_until(lambda: len(log_of(broker, topic)) == 6)
    epochs = {batch.producer_epoch for batch in log_of(broker, topic) if not batch.is_control}
    assert len(epochs) == {1: 1, 2: 3}[PROTOCOLS[client.name]]


@pytest.mark.parametrize("client", client_parameters(*PROTOCOLS), indirect=True)
def test_client_reads_what_others_committed(broker: BrokerUnderTest, client: Any) -> None:
    topic = broker.create_topic()
    for writer in ("kafka-python", "franz-go", "confluent"):
        prepared(writer).transact(broker.bootstrap, topic, unique("transactional"), STORY)
    finish(broker, topic)
    expected = [*(COMMITTED * 3), LAST]
    assert read_committed(broker, client.name, topic, len(expected)) == expected


@pytest.mark.parametrize("client", client_parameters(*TRANSFORMERS), indirect=True)
def test_client_transforms_exactly_once(broker: BrokerUnderTest, client: Any) -> None:
    """Read, write and commit the offset in one transaction; the second is aborted, and redone."""
    source, target = broker.create_topic(), broker.create_topic()
    group = unique("group")
    values = [f"value {number}".encode() for number in range(35)]
    writer = prepared("confluent")
    writer.transact(
        broker.bootstrap,
        source,
        unique("transactional"),
        [(True, values[:20]), (False, [b"aborted"] * 5), (True, values[20:])],
    )
    transactions = client.transform(
        broker.bootstrap, source, target, group, unique("transactional"), len(values)
    )
    assert transactions >= 3
    finish(broker, target)
    capitals = [value.upper() for value in values]
    assert read_committed(broker, "confluent", target, 36) == [*capitals, LAST]
    wait_until(lambda: not is_unstable(broker, group, source))
    # the position after the last record, or after the marker behind it
    assert offset_of(broker, group, source) in (20 + 1 + 5 + 1 + 15, 20 + 1 + 5 + 1 + 15 + 1)


@pytest.mark.parametrize("client", client_parameters(*PROTOCOLS), indirect=True)
def test_client_takes_over_from_one_that_died(broker: BrokerUnderTest, client: Any) -> None:
    """The successor's InitProducerId aborts what was left open, whatever protocol began it."""
    topic, name = broker.create_topic(), unique("transactional")
    for protocol in (1, 2):
        with TransactionalProducer(broker.bootstrap, name, protocol=protocol) as died:
            assert died.init() == NO_ERROR
            died.begin(topic)
            assert died.produce(topic, [b"left open"]).error_code == NO_ERROR
        client.transact(broker.bootstrap, topic, name, [(True, [b"x"])])
    finish(broker, topic)
    assert read_committed(broker, "confluent", topic, 3) == [b"x", b"x", LAST]


def test_confluent_producer_is_fenced_by_its_successor(broker: BrokerUnderTest) -> None:
    topic, name = broker.create_topic(), unique("transactional")
    zombie = Producer(broker.config(transactional_id=name))
    zombie.init_transactions(PATIENCE_SECONDS)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(PATIENCE_SECONDS)
    successor = Producer(broker.config(transactional_id=name))
    successor.init_transactions(PATIENCE_SECONDS)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(PATIENCE_SECONDS)
    assert fenced.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(topic, b"successor", partition=0)
    successor.commit_transaction(PATIENCE_SECONDS)
    finish(broker, topic)
    assert read_committed(broker, "confluent", topic, 2) == [b"successor", LAST]


def test_confluent_commits_an_empty_transaction(broker: BrokerUnderTest) -> None:
    producer = Producer(broker.config(transactional_id=unique("transactional")))
    producer.init_transactions(PATIENCE_SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction) * 2:
        producer.begin_transaction()
        end(PATIENCE_SECONDS)
