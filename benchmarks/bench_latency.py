"""End-to-end latency: produce one record, poll it, produce the next.

With acks=all Millstream has flushed the record before anybody sees it and Kafka has not. So its p50
is also compared with Kafka's and the time of one fdatasync on the same disk, measured in the same
rounds; acks=1, where neither flushes, shows the difference without the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement, percentile
from benchmarks.targets import Scale, Target, create_topic

KAFKA_AND_SYNC = "kafka + fdatasync"
SYNCS = 300


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for acks, p50_bar, p99_bar, p99_aim in (("all", None, 0.5, 0.25), ("1", 0.7, None, None)):
        name = f"end-to-end latency, acks={acks}"
        p50 = Measurement(f"{name}, p50", "ms", "lower is better", bar=p50_bar)
        p99 = Measurement(f"{name}, p99", "ms", "lower is better", bar=p99_bar, aim=p99_aim)
        syncs: list[float] = []
        for round_number in range(scale.rounds + 1):
            for target in targets:
                times = round_trips(target, scale.of(3000), acks)
                if round_number:
                    p50.add(target.name, percentile(times, 0.5))
                    p99.add(target.name, percentile(times, 0.99))
            if acks == "all" and round_number:
                syncs.append(percentile(sync_times(targets[0], scale.of(SYNCS)), 0.5))
        yield p50
        if syncs:
            yield with_one_sync(p50, syncs)
        yield p99


def with_one_sync(p50: Measurement, syncs: Sequence[float]) -> Measurement:
    """Our p50 against Kafka's plus one fdatasync, which we wait for and Kafka does not."""
    compared = Measurement(
        f"{p50.name}, against Kafka's and one fdatasync",
        p50.unit,
        p50.direction,
        bar=1.0,
        peer=KAFKA_AND_SYNC,
    )
    compared.samples["millstream"] = list(p50.samples.get("millstream", []))
    if "kafka" in p50.samples:
        kafka, sync = min(p50.samples["kafka"]), min(syncs)
        compared.samples[KAFKA_AND_SYNC] = [kafka + sync]
        compared.notes[KAFKA_AND_SYNC] = f"{kafka:.3f} + {sync:.3f}"
    return compared


def sync_times(target: Target, count: int) -> list[float]:
    """Milliseconds of an fdatasync after an append of 200 bytes, on the disk of the target."""
    path = target.directory / "fdatasync"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    times = []
    try:
        for _ in range(count):
            os.write(fd, b"x" * 200)
            started = time.perf_counter()
            os.fdatasync(fd)
            times.append((time.perf_counter() - started) * 1000)
    finally:
        os.close(fd)
        path.unlink()
    return times


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
