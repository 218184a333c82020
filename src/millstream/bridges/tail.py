"""The end of a partition: a stream that is continued after a restart has its position there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from millstream.errors import MillstreamError

METADATA_SECONDS = 10.0
POLL_SECONDS = 0.5
RECORDS_PER_TURN = 500


def last_headers(
    settings: Mapping[str, Any], topic: str, partition: int, count: int
) -> list[dict[str, bytes]]:
    """The headers of the records at the last `count` offsets, in order. None without a topic.
    Raises `MillstreamError` if the topic has no such partition, or cannot be read."""
    consumer = Consumer(
        {
            "group.id": "millstream-bridge",  # nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 4096,
            "log_level": 0,
            **settings,
        }
    )
    try:
        known = consumer.list_topics(timeout=METADATA_SECONDS).topics.get(topic)
        if known is None:
            return []
        if partition not in known.partitions:
            raise MillstreamError(f"topic {topic} has no partition {partition}")
        place = TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(place, METADATA_SECONDS)
        if high <= low:
            return []
        consumer.assign([TopicPartition(topic, partition, max(low, high - count))])
        return _read(consumer, topic)
    finally:
        consumer.close()


def _read(consumer: Any, topic: str) -> list[dict[str, bytes]]:
    found: list[dict[str, bytes]] = []
    until = time.monotonic() + METADATA_SECONDS
    while time.monotonic() < until:
        for each in consumer.consume(RECORDS_PER_TURN, POLL_SECONDS):
            if each.error() is None:
                found.append(dict(each.headers() or []))
                until = time.monotonic() + METADATA_SECONDS
            elif each.error().code() == KafkaError._PARTITION_EOF:
                return found
    raise MillstreamError(f"the end of topic {topic} cannot be read; the stream cannot continue")
