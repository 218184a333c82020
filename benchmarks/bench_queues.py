"""Share groups through confluent-kafka's ShareConsumer, every record acknowledged by itself.

Millstream has flushed an acknowledgement before it answers, so that an accepted record never comes
back; Kafka has not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks.bench_produce import produce
from benchmarks.measurement import Measurement, interleave, percentile
from benchmarks.targets import Scale, Target, create_topic

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

RECORD_BYTES = 100
JOIN_SECONDS_MAX = 60.0


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    count = scale.of(300_000)
    for target in targets:
        produce(target, RECORD_BYTES, count, "1")
    topics = {target.name: target.last_topic for target in targets}
    yield interleave(
        Measurement("share consume, explicit acknowledgement", "records/s", bar=1.0, aim=1.5),
        targets,
        scale.rounds,
        lambda target: drain(target, topics[target.name], count),
    )
    p50 = Measurement("share latency, p50", "ms", "lower is better")
    p99 = Measurement("share latency, p99", "ms", "lower is better", bar=0.5)
    for round_number in range(scale.rounds + 1):
        for target in targets:
            times = round_trips(target, scale.of(1_000))
            if round_number:
                p50.add(target.name, percentile(times, 0.5))
                p99.add(target.name, percentile(times, 0.99))
    yield from (p50, p99)


def drain(target: Target, topic: str, count: int) -> float:
    """Records per second, accepted one by one, from the first record to the last."""
    consumer = share_consumer(target, topic)
    try:
        seen = _accept(consumer, JOIN_SECONDS_MAX)
        started, before = time.perf_counter(), seen
        while seen < count:
            accepted = _accept(consumer, JOIN_SECONDS_MAX)
            if not accepted:
                raise TimeoutError(f"{target.name} delivered {seen} of {count} records")
            seen += accepted
        consumer.commit_sync(60)
        return (seen - before) / (time.perf_counter() - started)
    finally:
        consumer.close()


def round_trips(target: Target, count: int) -> list[float]:
    """Milliseconds from produce() to the record accepted, one record at a time."""
    from confluent_kafka import Producer

    topic = create_topic(target, partitions=1)
    producer = Producer({"bootstrap.servers": target.bootstrap, "acks": "all", "linger.ms": 0})
    consumer = share_consumer(target, topic)
    times = []
    try:
        for _ in range(count):
            started = time.perf_counter()
            producer.produce(topic, b"x" * RECORD_BYTES, partition=0)
            producer.poll(0)
            if not _accept(consumer, JOIN_SECONDS_MAX):
                raise TimeoutError(f"{target.name} did not deliver")
            consumer.commit_sync(60)
            times.append((time.perf_counter() - started) * 1000)
        producer.flush(10)
    finally:
        consumer.close()
    return times[count // 10 :]


def share_consumer(target: Target, topic: str) -> ShareConsumer:
    """A consumer alone in a new share group that begins with the topic's first record."""
    from confluent_kafka import ShareConsumer

    group = f"bench-{uuid.uuid4().hex[:12]}"
    read_from_the_beginning(target, group)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([topic])
    return consumer


def read_from_the_beginning(target: Target, group: str) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def _accept(consumer: ShareConsumer, seconds: float) -> int:
    """Accept what the next poll brings; how many records that were."""
    messages = consumer.poll(seconds)
    for message in messages:
        if message.error():
            raise RuntimeError(str(message.error()))
        consumer.acknowledge(message)
    return len(messages)
