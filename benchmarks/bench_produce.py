"""Produce throughput through confluent-kafka: 1 KB and 100 B records, acks=1 and acks=all.

Millstream flushes what it acknowledges with acks=all; Apache Kafka does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement, interleave
from benchmarks.targets import Scale, Target, create_topic

CASES = [("1 KB", 1000, "1"), ("1 KB", 1000, "all"), ("100 B", 100, "1"), ("100 B", 100, "all")]


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for label, record_bytes, acks in CASES:
        unit = "MB/s" if record_bytes == 1000 else "records/s"
        measurement = Measurement(f"produce {label}, acks={acks}", unit, bar=1.0, aim=1.2)
        count = scale.of(400_000 if record_bytes == 1000 else 1_000_000)

        def sample(
            target: Target, size: int = record_bytes, a: str = acks, n: int = count
        ) -> float:
            rate = produce(target, size, n, a)
            return rate * size / 1e6 if size == 1000 else rate

        for target in targets:
            before = target.flushes()
            interleave(measurement, [target], 0, sample)
            if acks == "all" and before is not None:
                measurement.notes[target.name] = f"{(target.flushes() or 0) - before} flushes"
        yield interleave(measurement, targets, scale.rounds, sample, warm_up=0)


def produce(target: Target, record_bytes: int, count: int, acks: str) -> float:
    """Records per second, from the first produce call to the last acknowledgement."""
    from confluent_kafka import KafkaException, Producer

    topic = create_topic(target, partitions=1)
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    producer.list_topics(topic, timeout=30)
    value = b"x" * record_bytes
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    started = time.perf_counter()
    for number in range(count):
        try:
            producer.produce(topic, value, partition=0)
        except BufferError:
            producer.poll(0.05)
            producer.produce(topic, value, partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    elapsed = time.perf_counter() - started
    if left or failures:
        raise KafkaException(f"{left} records left, {len(failures)} failed: {failures[:1]}")
    return count / elapsed
