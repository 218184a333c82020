"""Reading into Spark, raw: `format("millstream")` beside Spark's own Kafka connector.

One session, `local[2]`, the same topic of 180-byte values in 2 partitions, into `noop`. Then the
floor: how long a micro-batch with next to nothing in it takes, with our source and the settings
that `millstream run` applies, against the connector and Spark's defaults; both follow a topic into
which a record is written every 10 ms, with the trigger as fast as possible.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measurement import Measurement
from benchmarks.spark import CONNECTOR, FORMATS, spark_session, with_settings
from benchmarks.targets import Scale, Target, create_topic
from millstream.pipelines.session import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE = b"x" * 180
PARTITIONS = 2
ROWS = 1_000_000
WARM_UP_ROUNDS = 3  # the just-in-time compiler has the better part of a minute's work
TRICKLE_SECONDS = 0.01
FLOOR_BATCHES = 60
FLOOR_SECONDS_MAX = 120
# Those of ours that may be set for a single query.
OURS = {
    name: value
    for name, value in spark_settings("local[2]").items()
    if name.startswith(("spark.sql.streaming.", "spark.sql.shuffle."))
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with spark_session() as spark:
        for target in targets:
            yield _raw(spark, target, scale)
        yield _floor(spark, targets[0], scale, "stateless", lambda frame: frame, bar=0.7)
        yield _floor(
            spark,
            targets[0],
            scale,
            "stateful",
            lambda frame: frame.groupBy("partition").count(),
            bar=0.4,
        )


def _raw(spark: SparkSession, target: Target, scale: Scale) -> Measurement:
    rows = scale.of(ROWS)
    topic = create_topic(target, partitions=PARTITIONS)
    fill(target, topic, rows)
    measurement = Measurement(
        f"raw rows from {target.name} into noop", "rows/s", bar=1.5, aim=2.0, peer=CONNECTOR
    )
    for number in range(WARM_UP_ROUNDS + scale.rounds):
        for name, source in FORMATS.items():
            rate = rows / seconds_to_read(spark, source, target, topic)
            if number >= WARM_UP_ROUNDS:
                measurement.add(name, rate)
    return measurement


def fill(target: Target, topic: str, rows: int) -> None:
    """`rows` records, in turn into each partition."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "linger.ms": 20,
            "batch.size": 200_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, VALUE, key=b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError(f"{target.name} did not take all records")


def seconds_to_read(spark: SparkSession, source: str, target: Target, topic: str) -> float:
    frame = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", target.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _floor(
    spark: SparkSession,
    target: Target,
    scale: Scale,
    kind: str,
    transform: Callable[[DataFrame], DataFrame],
    *,
    bar: float,
) -> Measurement:
    batches = max(4, int(FLOOR_BATCHES * scale.factor))
    topic = create_topic(target, partitions=1)
    measurement = Measurement(
        f"small micro-batch, {kind}", "ms", "lower is better", bar=bar, peer=CONNECTOR
    )
    measurement.notes = {"millstream": "our settings", CONNECTOR: "Spark's defaults"}
    settings: Mapping[str, Mapping[str, str]] = {"millstream": OURS, CONNECTOR: {}}
    with _trickle(target, topic):
        for number in range(1 + scale.rounds):
            for name, source in FORMATS.items():
                with with_settings(spark, settings[name]):
                    times = batch_times(spark, source, target, topic, transform, batches)
                if number:
                    measurement.add(name, median(times))
    return measurement


@contextmanager
def _trickle(target: Target, topic: str) -> Iterator[None]:
    """A record now and then, as long as the context lasts."""
    from confluent_kafka import Producer

    stopped = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
        while not stopped.wait(TRICKLE_SECONDS):
            producer.produce(topic, VALUE)
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def batch_times(
    spark: SparkSession,
    source: str,
    target: Target,
    topic: str,
    transform: Callable[[DataFrame], DataFrame],
    batches: int,
) -> list[float]:
    """How long batches took that had records, in ms, the first ones left out."""
    checkpoint = Path(tempfile.mkdtemp(prefix="bench-checkpoint-"))
    frame = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", target.bootstrap)
        .option("subscribe", topic)
        .load()
    )
    query = (
        transform(frame)
        .writeStream.format("noop")
        .queryName(f"floor-{uuid.uuid4().hex[:8]}")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        deadline = time.monotonic() + FLOOR_SECONDS_MAX
        while time.monotonic() < deadline:
            last = query.lastProgress
            if last is not None and last.batchId >= 2 * batches:
                break
            if query.exception() is not None:
                raise RuntimeError(f"{source} failed") from query.exception()
            time.sleep(0.05)
        times = [
            it.durationMs["triggerExecution"] for it in query.recentProgress if it.numInputRows
        ]
        return [float(it) for it in times[len(times) // 2 :]]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
