"""From topic to topic through Spark at 1,000 events a second: ours exactly once, with our settings,
beside the connector, at least once, with Spark's defaults; in one session, `local[2]`, with the
trigger as fast as possible, which is Spark's default.

From the moment that a record is produced until a read-committed consumer of the other topic has it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measurement import Measurement, compare, percentile
from benchmarks.spark import (
    CONNECTOR,
    FORMATS,
    OURS,
    QUERY_SECONDS_MAX,
    SETTINGS,
    WARM_UP_ROUNDS,
    produced_every,
    read_stream,
    running_query,
    spark_session,
    wait_until,
    with_settings,
)
from benchmarks.targets import Scale, Target, create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_SECOND = 1000
EVENTS_SECONDS = 12.0
EVENTS_SECONDS_SKIPPED = 6.0


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with spark_session() as spark:
        for target in targets:
            yield from _topic_to_topic(spark, target, scale)


def _topic_to_topic(spark: SparkSession, target: Target, scale: Scale) -> Iterator[Measurement]:
    p50 = Measurement(
        f"topic to topic on {target.name}, 1,000/s, p50", "ms", "lower is better", bar=1.0
    )
    p99 = Measurement(f"topic to topic on {target.name}, 1,000/s, p99", "ms", "lower is better")
    p50.peer = p99.peer = CONNECTOR
    p50.notes = {OURS: "exactly once", CONNECTOR: "at least once"}

    def sample(name: str) -> float:
        with with_settings(spark, SETTINGS[name]):
            latencies = _latencies_ms(spark, name, target, scale)
        p99.add(name, percentile(latencies, 0.99))
        return percentile(latencies, 0.5)

    contenders = {name: partial(sample, name) for name in FORMATS}
    warm_up = 1 if scale.is_quick else WARM_UP_ROUNDS
    yield compare(p50, contenders, scale.rounds, warm_up=warm_up, shown=True)
    for samples in p99.samples.values():
        del samples[:warm_up]
    yield p99


def _latencies_ms(spark: SparkSession, name: str, target: Target, scale: Scale) -> list[float]:
    source, derived = (create_topic(target, partitions=1) for _ in range(2))
    frame = read_stream(spark, name, target, source).select("key", "value")
    writer = (
        frame.writeStream.format(FORMATS[name])
        .queryName(f"latency-{uuid.uuid4().hex[:8]}")
        .option("kafka.bootstrap.servers", target.bootstrap)
        .option("topic", derived)
    )
    skipped_ms = 1000 * scale.seconds(EVENTS_SECONDS_SKIPPED)
    with running_query(writer) as query:
        wait_until(query, lambda: query.lastProgress is not None, QUERY_SECONDS_MAX)
        with produced_every(1 / EVENTS_PER_SECOND, target, source):
            latencies = _consume(target, derived, skipped_ms, scale.seconds(EVENTS_SECONDS))
    if not latencies:
        raise RuntimeError(f"nothing came through {name} in time")
    return latencies


def _consume(target: Target, topic: str, skipped_ms: float, seconds: float) -> list[float]:
    """Latencies in ms, for so many seconds from the first record on that was sent later than the
    first of all by the time to skip."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "bench-latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 500,
            "fetch.min.bytes": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    latencies: list[float] = []
    begin_ms: float | None = None
    deadline = time.monotonic() + QUERY_SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.01):
                if message.error() is not None:
                    continue
                sent_ms = float(message.value())
                if begin_ms is None:
                    begin_ms = sent_ms + skipped_ms
                if sent_ms >= begin_ms:
                    if not latencies:
                        deadline = time.monotonic() + seconds
                    latencies.append(time.time() * 1000 - sent_ms)
    finally:
        consumer.close()
    return latencies
