"""Records and groups for the tests of pages."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.peers.patience import PATIENCE_SECONDS


def produce(servers: str, topic: str, count: int, *, timestamp_ms: int = 0) -> None:
    """Records of 100 bytes in partition 0, from now or from a time."""
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(count):
        producer.produce(topic, b"x" * 100, b"key", partition=0, timestamp=timestamp_ms)
    assert producer.flush(PATIENCE_SECONDS) == 0


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    """Make `group` a group that has read partition 0 up to the offset."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()
