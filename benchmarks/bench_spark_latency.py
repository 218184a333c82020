"""How fast a stream on Spark follows a topic: ours with our settings beside the connector with
Spark's defaults, in one session, with the trigger as fast as possible.

The floor: how long a micro-batch with next to nothing in it takes, from a topic into which a record
is written every 10 ms, into `noop`, without state and with a count by partition.

Topic to topic at 1,000 events a second: from the moment that a record is produced until a
read-committed consumer of the other topic has it. Ours is exactly once, the connector's at least
once.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measurement import Measurement, compare, percentile
from benchmarks.spark import (
    CONNECTOR,
    FORMATS,
    OURS,
    QUERY_SETTINGS,
    read_stream,
    running_query,
    spark_session,
    wait_until,
    with_settings,
)
from benchmarks.targets import Scale, Target, create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Mapping[str, Mapping[str, str]] = {OURS: QUERY_SETTINGS, CONNECTOR: {}}
TRICKLE_SECONDS = 0.01
FLOOR_BATCHES = 30
FLOOR_BATCHES_SKIPPED = 20
EVENTS_PER_SECOND = 1000
EVENTS_SECONDS = 15.0
EVENTS_SECONDS_SKIPPED = 8.0
QUERY_SECONDS_MAX = 180


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with spark_session() as spark:
        for kind, transform, bar in (
            ("stateless", _as_it_is, 0.7),
            ("stateful", _counted, 0.4),
        ):
            yield _floor(spark, targets[0], scale, kind, transform, bar)
        for target in targets:
            yield from _topic_to_topic(spark, target, scale)


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def _counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("partition").count()


def _floor(
    spark: SparkSession,
    target: Target,
    scale: Scale,
    kind: str,
    transform: Callable[[DataFrame], DataFrame],
    bar: float,
) -> Measurement:
    batches = max(4, int(FLOOR_BATCHES * scale.factor))
    skipped = max(2, int(FLOOR_BATCHES_SKIPPED * scale.factor))
    topic = create_topic(target, partitions=1)
    figure = Measurement(
        f"small micro-batch, {kind}, p50", "ms", "lower is better", bar=bar, peer=CONNECTOR
    )
    figure.notes = {OURS: "our settings", CONNECTOR: "Spark's defaults"}

    def sample(name: str) -> float:
        with with_settings(spark, SETTINGS[name]):
            frame = transform(read_stream(spark, name, target, topic))
            return median(_batch_times(frame, skipped, batches))

    with _produced_every(TRICKLE_SECONDS, target, topic):
        contenders = {name: partial(sample, name) for name in FORMATS}
        return compare(figure, contenders, scale.rounds, warm_up=1, shown=True)


def _batch_times(frame: DataFrame, skipped: int, batches: int) -> list[float]:
    """How long batches took that had records, in ms, after the first ones."""
    name = f"floor-{uuid.uuid4().hex[:8]}"
    writer = frame.writeStream.format("noop").queryName(name).outputMode("update")
    with running_query(writer) as query:

        def times() -> list[float]:
            recent = [it for it in query.recentProgress if it.numInputRows]
            return [float(it.durationMs["triggerExecution"]) for it in recent]

        wait_until(query, lambda: len(times()) >= skipped + batches, QUERY_SECONDS_MAX)
        return times()[skipped:]


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
    yield compare(p50, contenders, scale.rounds, warm_up=1, shown=True)
    for samples in p99.samples.values():
        del samples[0]  # the warm-up
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
        with _produced_every(1 / EVENTS_PER_SECOND, target, source):
            arrivals = _consume(target, derived, skipped_ms / 1000 + scale.seconds(EVENTS_SECONDS))
    if not arrivals:
        raise RuntimeError(f"nothing came through {name}")
    begin_ms = arrivals[0][0] + skipped_ms
    return [received - sent for sent, received in arrivals if sent >= begin_ms]


def _consume(target: Target, topic: str, seconds: float) -> list[tuple[float, float]]:
    """When each record was sent and received, in ms, for so many seconds from the first one on."""
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
    arrivals: list[tuple[float, float]] = []
    deadline = time.monotonic() + QUERY_SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.01):
                if message.error() is None:
                    arrivals.append((float(message.value()), time.time() * 1000))
                    if len(arrivals) == 1:
                        deadline = time.monotonic() + seconds
    finally:
        consumer.close()
    return arrivals


@contextmanager
def _produced_every(pause_seconds: float, target: Target, topic: str) -> Iterator[None]:
    """Records at a steady rate as long as the context lasts; each tells when it was sent, in ms."""
    from confluent_kafka import Producer

    stopped = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
        due = time.monotonic()
        while not stopped.wait(max(0.0, due - time.monotonic())):
            while due <= time.monotonic():  # those that are overdue go at once
                producer.produce(topic, b"%.3f" % (time.time() * 1000))
                due += pause_seconds
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
