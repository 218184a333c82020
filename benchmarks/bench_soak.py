"""Ten minutes of load with consumers that lag by gigabytes: does resident memory stay flat?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target, create_topic

GROWTH_MB_MAX = 32
BATCH = 1000


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    growth = Measurement("memory growth under lag", "MB", "lower is better")
    for target in targets:
        if target.name == "millstream":
            megabytes, note = soak(target, seconds=scale.seconds(600))
            growth.add(target.name, megabytes)
            growth.notes[target.name] = f"{note}; at most {GROWTH_MB_MAX} MB"
    yield growth


def soak(target: Target, seconds: float) -> tuple[float, str]:
    """A fast producer, a slow reader from the beginning, and one at the tail."""
    topic = create_topic(target, partitions=4)
    stop = threading.Event()
    counts = {"produced": 0, "slow reader": 0, "tail": 0}
    threads = [
        threading.Thread(target=_produce, args=(target, topic, stop, counts)),
        threading.Thread(target=_read, args=(target, topic, stop, counts, "slow reader", 0.05)),
        threading.Thread(target=_read, args=(target, topic, stop, counts, "tail", 0.0)),
    ]
    for thread in threads:
        thread.start()
    time.sleep(min(20.0, seconds / 5))  # the first connections and caches are not growth
    before = target.memory_mb()
    deadline = time.monotonic() + seconds
    highest = before
    while time.monotonic() < deadline:
        time.sleep(min(2.0, seconds / 10))
        highest = max(highest, target.memory_mb())
    stop.set()
    for thread in threads:
        thread.join()
    lag = counts["produced"] - counts["slow reader"]
    return highest - before, f"{counts}, slow reader {lag * 1000 / 1e9:.1f} GB behind"


def _produce(target: Target, topic: str, stop: threading.Event, counts: dict[str, int]) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": target.bootstrap, "linger.ms": 5, "batch.size": 500_000}
    producer = Producer(settings)
    value = b"x" * 1000
    while not stop.is_set():
        for _ in range(BATCH):
            producer.produce(topic, value)
        producer.flush(30)
        counts["produced"] += BATCH
        time.sleep(0.02)  # some 40 MB/s: gigabytes within minutes, disks not filled


def _read(
    target: Target,
    topic: str,
    stop: threading.Event,
    counts: dict[str, int],
    name: str,
    pause: float,
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": name,
            "queued.max.messages.kbytes": 1024,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    while not stop.is_set():
        counts[name] += len(consumer.consume(100 if pause else 1000, timeout=0.2))
        time.sleep(pause)
    consumer.close()
