"""The end of a topic: a stream that is continued after a restart has its position there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.errors import MillstreamError

METADATA_SECONDS = 10.0
POLL_SECONDS = 0.5
RECORDS_PER_TURN = 500


def last_headers(
    settings: Mapping[str, Any], topic: str, partition: int | None, count: int
) -> list[dict[str, bytes]]:
    """The headers of the records at the last `count` offsets of a partition, in order; of all
    partitions if it is None, each with its share. None without a topic. Raises `MillstreamError` if
    the topic has no such partition, or cannot be read."""
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
        if known is None or not known.partitions:
            return []
        if partition is not None and partition not in known.partitions:
            raise MillstreamError(f"topic {topic} has no partition {partition}")
        wanted = sorted(known.partitions) if partition is None else [partition]
        places = []
        for number in wanted:
            place = TopicPartition(topic, number)
            low, high = consumer.get_watermark_offsets(place, METADATA_SECONDS)
            if high > low:
                share = -(-count // len(wanted))
                places.append(TopicPartition(topic, number, max(low, high - share)))
        consumer.assign(places)
        return _read(consumer, topic, len(places))
    except KafkaException as error:
        raise MillstreamError(f"topic {topic} cannot be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _read(consumer: Any, topic: str, partitions: int) -> list[dict[str, bytes]]:
    found: list[dict[str, bytes]] = []
    ended: set[int] = set()
    until = time.monotonic() + METADATA_SECONDS
    while len(ended) < partitions:
        if time.monotonic() > until:
            raise MillstreamError(
                f"the end of topic {topic} cannot be read; the stream cannot continue"
            )
        for each in consumer.consume(RECORDS_PER_TURN, POLL_SECONDS):
            if each.error() is None:
                found.append(dict(each.headers() or []))
                until = time.monotonic() + METADATA_SECONDS
            elif each.error().code() == KafkaError._PARTITION_EOF:
                ended.add(each.partition())
    return found
