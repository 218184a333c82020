"""End-to-end latency: produce one record, poll it, produce the next.

With acks=all Millstream has flushed the record before anybody sees it and Kafka has not; acks=1,
where neither flushes, shows what of the difference is the disk's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement, percentile
from benchmarks.targets import Scale, Target, create_topic


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for acks, p50_bar, p99_bar, p99_aim in (("all", 0.7, 0.5, 0.25), ("1", None, None, None)):
        name = f"end-to-end latency, acks={acks}"
        p50 = Measurement(f"{name}, p50", "ms", "lower is better", bar=p50_bar)
        p99 = Measurement(f"{name}, p99", "ms", "lower is better", bar=p99_bar, aim=p99_aim)
        for round_number in range(scale.rounds + 1):
            for target in targets:
                times = round_trips(target, scale.of(3000), acks)
                if round_number:
                    p50.add(target.name, percentile(times, 0.5))
                    p99.add(target.name, percentile(times, 0.99))
        yield p50
        yield p99


def round_trips(target: Target, count: int, acks: str) -> list[float]:
    """Milliseconds from produce() to the record in the consumer's hand."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = create_topic(target, partitions=1)
    producer = Producer({"bootstrap.servers": target.bootstrap, "acks": acks, "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    times = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(count):
            started = time.perf_counter()
            producer.produce(topic, b"x" * 100, partition=0)
            producer.poll(0)
            message = consumer.poll(30)
            if message is None or message.error():
                raise TimeoutError(f"{target.name}: {message and message.error()}")
            times.append((time.perf_counter() - started) * 1000)
        producer.flush(10)
    finally:
        consumer.close()
    return times[count // 10 :]
