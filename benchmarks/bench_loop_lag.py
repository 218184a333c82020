"""How long one client's ping takes while the broker does its housekeeping.

The ping is an ApiVersions request, one every two milliseconds. A broker that serves everybody from
one event loop holds all of them up whenever it waits for the disk, or works, for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.measurement import Measurement, percentile
from benchmarks.raw_client import (
    api_versions_request,
    connect,
    produce_request,
    receive_frame,
    run_windows,
)
from benchmarks.targets import Scale, Target, create_topic

PING_EVERY_SECONDS = 0.002
MANY_PARTITIONS = 1000
RETAINED_PARTITIONS = 300
COMPACTED_BYTES = 24_000_000
# Housekeeping often enough to be measured in seconds; Kafka waits 30 s before its first round.
SETTINGS = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    "file.delete.delay.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}


class Pings:
    """Sends pings from a thread of its own until it is stopped."""

    def __init__(self, target: Target) -> None:
        self._connection = connect(target.bootstrap, timeout=60)
        self._is_over = False
        self.milliseconds: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Pings:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        request = api_versions_request()
        while not self._is_over:
            started = time.perf_counter()
            self._connection.sendall(request)
            receive_frame(self._connection)
            self.milliseconds.append((time.perf_counter() - started) * 1000)
            time.sleep(PING_EVERY_SECONDS)


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    works: dict[str, Callable[[Target, Scale], None]] = {
        "creating 1,000 partitions": _create,
        "checkpoints of 1,000 partitions": _checkpoint,
        "deleting 1,000 partitions": _delete,
        f"retention of {RETAINED_PARTITIONS} partitions": _retain,
        "compaction": _compact,
    }
    figures = {
        (name, what): Measurement(
            f"ping, {what}, during {name}", "ms", "lower is better", bar=1.0, aim=0.5
        )
        for name in works
        for what in ("p99", "max")
    }
    for _ in range(max(1, scale.rounds - 1)):
        for target in targets:
            with target.fresh(_settings(target)) as own:
                _warm_up(own, scale)
                for name, work in works.items():
                    with Pings(own) as pings:
                        work(own, scale)
                    figures[name, "p99"].add(target.name, percentile(pings.milliseconds, 0.99))
                    figures[name, "max"].add(target.name, max(pings.milliseconds))
    yield from figures.values()


def _settings(target: Target) -> dict[str, str]:
    kafkas_own = ("log.initial.task.delay.ms", "file.delete.delay.ms")
    ours = target.name == "millstream"
    return {name: value for name, value in SETTINGS.items() if not (ours and name in kafkas_own)}


def _warm_up(target: Target, scale: Scale) -> None:
    request = produce_request(create_topic(target, partitions=1), 0, acks=1)
    seconds = scale.seconds(8.0)
    run_windows(target.bootstrap, [request], connections=4, in_flight=10, seconds=seconds)


def _create(target: Target, scale: Scale) -> None:
    create_topic(target, partitions=_many(scale))
    time.sleep(scale.seconds(1.0))


def _checkpoint(target: Target, scale: Scale) -> None:
    """The topic of 1,000 partitions is written to, and its recovery points are saved twice."""
    _produce_to_all(target, _many(scale))
    time.sleep(scale.seconds(5.0))


def _delete(target: Target, scale: Scale) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.delete_topics([target.last_topic], operation_timeout=30)[target.last_topic].result(60)
    time.sleep(scale.seconds(3.0))


def _retain(target: Target, scale: Scale) -> None:
    partitions = max(1, int(RETAINED_PARTITIONS * min(1.0, 5 * scale.factor)))
    create_topic(target, partitions=partitions, retention_ms="1000")
    _produce_to_all(target, partitions)
    time.sleep(scale.seconds(6.0))


def _compact(target: Target, scale: Scale) -> None:
    from confluent_kafka import Producer

    settings = {"cleanup_policy": "compact", "segment_bytes": "4194304"}
    topic = create_topic(target, partitions=1, min_cleanable_dirty_ratio="0.01", **settings)
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 5})
    value = b"x" * 1000
    for number in range(max(1, int(COMPACTED_BYTES * scale.factor) // len(value))):
        while True:
            try:
                producer.produce(topic, value, key=str(number % 1000))
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(60)
    time.sleep(scale.seconds(5.0))


def _many(scale: Scale) -> int:
    return max(20, int(MANY_PARTITIONS * min(1.0, 5 * scale.factor)))


def _produce_to_all(target: Target, partitions: int) -> None:
    """One acknowledged record to each partition."""
    with connect(target.bootstrap, timeout=60) as connection:
        for partition in range(partitions):
            connection.sendall(produce_request(target.last_topic, partition, -1))
            receive_frame(connection)
