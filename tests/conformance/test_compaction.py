"""Compaction and retention as a reader sees them; segments are at least 1 MB, as Kafka 4 wants."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_admin import list_offsets
from tests.peers.patience import PATIENCE_SECONDS, wait_until

ALSO_ON_A_WORKER = True

SEGMENT_BYTES = 1_048_576
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": SEGMENT_BYTES,
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": 0,
    "max_compaction_lag_ms": 1000,
}


def fill_segments(broker: BrokerUnderTest, topic: str, segments: int) -> None:
    """Random values under one key: each segment's worth makes the one before it old."""
    producer = Producer(broker.config(linger_ms=5))
    for _ in range(segments * 12):
        producer.produce(topic, os.urandom(100_000), b"filler", partition=0)
    producer.flush(PATIENCE_SECONDS)


def surviving(broker: BrokerUnderTest, topic: str) -> Iterator[Message]:
    """Everything a reader from the beginning still finds."""
    settings = {
        "enable_partition_eof": True,
        "check_crcs": True,
        "auto_offset_reset": "earliest",  # retention may take the beginning before it is fetched
    }
    consumer = Consumer(broker.config(group_id=unique("reader"), **settings))
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return
    finally:
        consumer.close()


def test_compaction_keeps_the_last_value_of_each_key_at_its_offset(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic(**COMPACTED)
    producer = Producer(broker.config(linger_ms=5))
    expected: dict[bytes, tuple[int, bytes]] = {}
    for number in range(1000):
        key, value = f"key-{number % 50}".encode(), f"value-{number}".encode()
        producer.produce(topic, value, key, partition=0)
        expected[key] = (number, value)
    producer.flush(PATIENCE_SECONDS)
    fill_segments(broker, topic, 2)

    def compacted() -> bool:
        found = [m for m in surviving(broker, topic) if m.key() != b"filler"]
        kept = {m.key(): (m.offset(), m.value()) for m in found}
        assert kept == expected
        return len(found) == len(expected)

    wait_until(compacted)


def test_compaction_removes_what_a_tombstone_names_and_at_last_the_tombstone(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic(**COMPACTED)
    producer = Producer(broker.config())
    producer.produce(topic, b"alive", b"kept", partition=0)
    producer.produce(topic, b"doomed", b"gone", partition=0)
    producer.produce(topic, None, b"gone", partition=0)
    producer.flush(PATIENCE_SECONDS)
    rounds = itertools.count()

    def cleaned() -> bool:
        if next(rounds) % 4 == 0:  # the tombstone falls in a later cleaning than its victim
            fill_segments(broker, topic, 1)
        found = [m for m in surviving(broker, topic) if m.key() != b"filler"]
        return [(m.key(), m.value(), m.offset()) for m in found] == [(b"kept", b"alive", 0)]

    wait_until(cleaned)


def test_retention_by_size_drops_old_segments(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(segment_bytes=SEGMENT_BYTES, retention_bytes=2 * SEGMENT_BYTES)
    fill_segments(broker, topic, 6)
    # of 72 records, ten to a segment, two segments and the one being written stay
    wait_until(lambda: list_offsets(broker, topic, OffsetSpec.earliest())[0] >= 40)
    offsets = [message.offset() for message in surviving(broker, topic)]
    assert offsets == list(range(offsets[0], 72))
    assert len(offsets) * 100_000 >= 2 * SEGMENT_BYTES - 100_000


def test_retention_by_time_drops_old_records(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(retention_ms=500)
    producer = Producer(broker.config())
    for number in range(10):
        producer.produce(topic, str(number).encode(), partition=0)
    producer.flush(PATIENCE_SECONDS)
    wait_until(lambda: list_offsets(broker, topic, OffsetSpec.earliest()) == [10])
    assert list_offsets(broker, topic, OffsetSpec.latest()) == [10]
    assert list(surviving(broker, topic)) == []
