"""Every client produces, consumes and shares a group: the same story in all languages."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import client_parameters, prepared
from tests.peers.clients import CLIENTS, COMPRESSIONS
from tests.peers.programs import ProgramError, Record

every_client = pytest.mark.parametrize("client", client_parameters(), indirect=True)


def some_records(count: int = 40, partition: int | None = None) -> list[Record]:
    """Text records (kcat reads JSON) of varied size, with keys and a header."""
    return [
        Record(
            key=f"key-{index}".encode(),
            value=f"value-{index}-".encode() * (1 + index % 7),
            headers=(("trace", b"abc"),),
            partition=partition,
        )
        for index in range(count)
    ]


@pytest.mark.slow_with("java")
@every_client
def test_client_reads_back_what_it_produced_in_every_compression(
    broker: BrokerUnderTest, client: Any
) -> None:
    for compression in COMPRESSIONS[client.name]:
        topic = broker.create_topic()
        sent = some_records(partition=0)
        positions = client.produce(broker.bootstrap, topic, sent, compression=compression)
        received = client.consume(broker.bootstrap, topic, len(sent))
        assert [record.content for record in received] == [record.content for record in sent]
        assert [record.offset for record in received] == list(range(len(sent)))
        assert positions in ([(0, offset) for offset in range(len(sent))], [])


@every_client
def test_client_reads_what_another_client_compressed(broker: BrokerUnderTest, client: Any) -> None:
    writer = prepared("confluent")
    for compression in COMPRESSIONS[client.name]:
        topic = broker.create_topic(partitions=2)
        sent = some_records(20, partition=0) + some_records(20, partition=1)
        writer.produce(broker.bootstrap, topic, sent, compression=compression)
        received = client.consume(broker.bootstrap, topic, len(sent))
        assert sorted(record.content for record in received) == sorted(
            record.content for record in sent
        )


@every_client
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_client_produces_with_every_acks(broker: BrokerUnderTest, client: Any, acks: str) -> None:
    topic = broker.create_topic()
    sent = some_records(10, partition=0)
    client.produce(broker.bootstrap, topic, sent, acks=acks)
    received = prepared("confluent").consume(broker.bootstrap, topic, len(sent))
    assert [record.content for record in received] == [record.content for record in sent]


@every_client
def test_client_produces_idempotently(broker: BrokerUnderTest, client: Any) -> None:
    topic = broker.create_topic()
    sent = some_records(100, partition=0)
    client.produce(broker.bootstrap, topic, sent, idempotent=True)
    received = prepared("confluent").consume(broker.bootstrap, topic, len(sent))
    assert [record.content for record in received] == [record.content for record in sent]


@pytest.mark.parametrize(
    "client",
    client_parameters("kafka-python", "java", "java-3.9", "kafkajs", "franz-go"),
    indirect=True,
)
def test_client_sends_a_key_where_the_java_client_does(
    broker: BrokerUnderTest, client: Any
) -> None:
    """murmur2 of the key modulo 5, computed by Apache's client once: they must never move."""
    topic = broker.create_topic(partitions=5)
    keys = [b"a", b"key-1", b"key-2", b"millstream", "Müller".encode(), b"\x00\xff"]
    sent = [Record(key=key, value=b"x") for key in keys]
    positions = client.produce(broker.bootstrap, topic, sent)
    assert [partition for partition, _ in positions] == [4, 0, 2, 3, 0, 3]


GROUP_CLIENTS = [name for name in CLIENTS if name != "kcat"]
QUICK = {
    "confluent": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300},
    "kafka-python": {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300},
    "aiokafka": {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300},
    "java": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300},
    "java-3.9": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300},
    "kafkajs": {"sessionTimeout": 6000},
    "franz-go": {},
}


@pytest.mark.slow_with("kafka-python")
@pytest.mark.parametrize("client", client_parameters(*GROUP_CLIENTS), indirect=True)
def test_client_shares_a_topic_within_a_group_and_takes_over_when_a_member_leaves(
    broker: BrokerUnderTest, client: Any
) -> None:
    """kafka-python may lose its join, with any broker: see `group_consumer`. It may try again."""
    for attempts_left in reversed(range(3 if client.name == "kafka-python" else 1)):
        topic = broker.create_topic(partitions=4)
        try:
            share_and_take_over(broker, client, topic, QUICK[client.name])
            return
        except ProgramError as error:
            if not attempts_left:
                raise
            warnings.warn(f"{client.name} tries again: {error}", stacklevel=1)


@pytest.mark.slow_with("java")
@pytest.mark.parametrize(
    "client", client_parameters("confluent", "java", "franz-go"), indirect=True
)
def test_client_shares_a_topic_by_the_consumer_protocol(
    broker: BrokerUnderTest, client: Any
) -> None:
    topic = broker.create_topic(partitions=4)
    share_and_take_over(broker, client, topic, {"group.protocol": "consumer"})


def share_and_take_over(
    broker: BrokerUnderTest, client: Any, topic: str, config: dict[str, Any]
) -> None:
    group = unique("group")
    writer = prepared("confluent")
    writer.produce(broker.bootstrap, topic, [Record(value=b"1", partition=p) for p in range(4)])
    first = client.join(broker.bootstrap, topic, group, config)
    second = None
    try:
        first.wait_until(lambda member: member.partitions == {0, 1, 2, 3})
        first.wait_until(lambda member: len(member.records) == 4)
        second = client.join(broker.bootstrap, topic, group, config)
        second.wait_until(lambda member: len(member.partitions) == 2)
        first.wait_until(lambda member: len(member.partitions) == 2)
        assert first.partitions | second.partitions == {0, 1, 2, 3}
        first.close()
        second.wait_until(lambda member: member.partitions == {0, 1, 2, 3})
        writer.produce(broker.bootstrap, topic, [Record(value=b"2", partition=p) for p in range(4)])
        second.wait_until(lambda member: len(member.records) >= 4)
        assert {record.value for record in second.records} == {b"2"}
        second.close()
    finally:
        for member in (first, second):
            if member is not None:
                member.kill()


def test_kcat_lists_metadata_and_reads_as_a_group(broker: BrokerUnderTest) -> None:
    kcat = prepared("kcat")
    topic = broker.create_topic(partitions=3)
    prepared("confluent").produce(broker.bootstrap, topic, some_records(9))
    listed = kcat.metadata(broker.bootstrap, topic)["topics"][0]
    assert (listed["topic"], len(listed["partitions"])) == (topic, 3)
    reader = kcat.group_reader(broker.bootstrap, topic, unique("group"))
    try:
        values = {reader.receive()["payload"].encode() for _ in range(9)}
    finally:
        reader.kill()
    assert values == {record.value for record in some_records(9)}
