"""A topic that is deleted and created again: new and empty, whatever its predecessor was."""

from __future__ import annotations

import itertools

from confluent_kafka import Producer, TopicPartition

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_compaction import COMPACTED, fill_segments, surviving
from tests.peers.patience import PATIENCE_SECONDS, wait_until

ALSO_ON_A_WORKER = True


def write(broker: BrokerUnderTest, topic: str, count: int, prefix: str) -> list[bytes]:
    """Acknowledged records, each under a key of its own; returns their values."""
    producer = Producer(broker.config(acks="all"))
    failures: list[object] = []
    values = [f"{prefix}-{number}".encode() for number in range(count)]
    for value in values:
        producer.produce(
            topic, value, value, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failures == [None] * count
    return values


def recreate(broker: BrokerUnderTest, topic: str, **settings: str | int) -> None:
    broker.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)

    def is_gone() -> bool:
        return topic not in broker.admin.list_topics(timeout=PATIENCE_SECONDS).topics

    wait_until(is_gone)
    broker.create_topic(name=topic, **settings)


def read(broker: BrokerUnderTest, topic: str) -> list[tuple[int, bytes]]:
    return [(message.offset(), message.value()) for message in surviving(broker, topic)]


def test_new_topic_begins_at_zero_although_records_of_the_old_one_were_deleted(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    write(broker, topic, 100, "old")
    cut = broker.admin.delete_records([TopicPartition(topic, 0, 60)])
    assert next(iter(cut.values())).result(PATIENCE_SECONDS).low_watermark == 60
    recreate(broker, topic)
    values = write(broker, topic, 10, "new")
    assert read(broker, topic) == list(enumerate(values))


def test_new_topic_is_whole_although_the_old_one_is_being_compacted(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic(**COMPACTED)
    fill_segments(broker, topic, 3)
    recreate(broker, topic, **COMPACTED)
    values = write(broker, topic, 10, "new")
    other = broker.create_topic(**COMPACTED)  # the cleaner has come by when this one is clean
    fill_segments(broker, other, 2)
    wait_until(lambda: len(list(surviving(broker, other))) < 24)
    assert read(broker, topic) == list(enumerate(values))


def test_transactions_of_the_old_topic_hide_nothing_in_the_new_one(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    producer = Producer(broker.config(transactional_id=unique("recreate")))
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, b"aborted-%d" % number, partition=0)
    producer.flush(PATIENCE_SECONDS)
    producer.abort_transaction(PATIENCE_SECONDS)
    recreate(broker, topic)
    values = write(broker, topic, 10, "new")
    assert read(broker, topic) == list(enumerate(values))


def test_topics_can_be_deleted_while_they_are_written(broker: BrokerUnderTest) -> None:
    """And no other topic notices."""
    safe = broker.create_topic()
    producer = Producer(broker.config(linger_ms=0, message_timeout_ms=2000))
    for size in (100, 5_000, 100_000):
        topic = broker.create_topic(partitions=6)
        for partition in itertools.islice(itertools.cycle(range(6)), 120):
            producer.produce(topic, b"x" * size, partition=partition)
        producer.poll(0)
        broker.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        producer.purge()
        write(broker, safe, 3, "safe")
    assert len(read(broker, safe)) == 9
