"""Consume throughput through confluent-kafka, from the start of a topic in the page cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.bench_produce import produce
from benchmarks.measurement import Measurement, interleave
from benchmarks.targets import Scale, Target


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for label, record_bytes, count in (
        ("1 KB", 1000, scale.of(600_000)),
        ("100 B", 100, scale.of(1_500_000)),
    ):
        for target in targets:
            produce(target, record_bytes, count, "1")
        topics = {target.name: target.last_topic for target in targets}
        unit = "MB/s" if record_bytes == 1000 else "records/s"
        measurement = Measurement(f"consume {label}", unit, bar=1.0, aim=1.2)

        def sample(
            target: Target, size: int = record_bytes, n: int = count, names: dict[str, str] = topics
        ) -> float:
            rate = consume(target, names[target.name], n)
            return rate * size / 1e6 if size == 1000 else rate

        yield interleave(measurement, targets, scale.rounds, sample)

    # librdkafka stops fetching for a second whenever 100,000 records are queued, so this measures
    # how often a client is given records faster than it consumes them.
    defaults = Measurement("consume 100 B, default settings", "records/s", bar=1.0)

    def sample_defaults(target: Target) -> float:
        return consume(target, topics[target.name], count, settings={})

    yield interleave(defaults, targets, scale.rounds, sample_defaults)


TUNED: Mapping[str, object] = {
    "fetch.message.max.bytes": 4_194_304,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 262_144,
    "fetch.queue.backoff.ms": 5,
    "check.crcs": False,
}


def consume(
    target: Target, topic: str, count: int, settings: Mapping[str, object] = TUNED
) -> float:
    """Records per second, from the first record to the last."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = len(consumer.consume(1, timeout=30))
        started = time.perf_counter()
        while seen < count:
            messages = consumer.consume(min(10_000, count - seen), timeout=30)
            if not messages:
                raise TimeoutError(f"{target.name} delivered {seen} of {count} records")
            seen += len(messages)
        return count / (time.perf_counter() - started)
    finally:
        consumer.close()
