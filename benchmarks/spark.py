"""What the benchmarks on Spark share: a session with Spark's own Kafka connector beside us, topics
full of records, and queries by both.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from tests.peers.spark_connector import connector_jars

from benchmarks.targets import Target
from millstream.pipelines.running.local_disk import use_local_disk
from millstream.pipelines.running.session import JAVA_OPTIONS, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OURS = "millstream"  # as measurements call them
CONNECTOR = "connector"
FORMATS = {OURS: "millstream", CONNECTOR: "kafka"}
WARM_UP_ROUNDS = 3  # the just-in-time compiler has the better part of a minute's work
# The settings of ours that may be set for a single query, and those that a session begins with.
QUERY_SETTINGS = {
    name: value
    for name, value in spark_settings("local[2]").items()
    if name.startswith(("spark.sql.streaming.", "spark.sql.shuffle."))
}
PROCESS_SETTINGS = {
    name: value
    for name, value in spark_settings("local[2]").items()
    if name.startswith("spark.python.") or name == JAVA_OPTIONS
}


# For queries: ours with our settings, the connector with Spark's defaults.
SETTINGS: Mapping[str, Mapping[str, str]] = {OURS: QUERY_SETTINGS, CONNECTOR: {}}
QUERY_SECONDS_MAX = 180


@contextmanager
def spark_session(cores: int = 2, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """A new session with Spark's defaults, as far as they have to do with the connector's speed:
    what we set for Python's workers it does not notice, and what we set for the JVM speeds up all
    queries."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers start as a user's do
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", ",".join(map(str, [*connector_jars(), *jars])))
    )
    for name, value in PROCESS_SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    use_local_disk(session)  # Spark's default checkpoints, as the connector's, do not use it
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """These settings for the queries that are started meanwhile."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def fill(
    target: Target, topic: str, values: Sequence[bytes], count: int, *, partitions: int
) -> None:
    """`count` records, in turn into each partition, with the values over and over."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "linger.ms": 20,
            "batch.size": 200_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, value in enumerate(islice(cycle(values), count)):
        while True:
            try:
                producer.produce(topic, value, key=b"%d" % number, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError(f"{target.name} did not take all records")


def read(spark: SparkSession, name: str, target: Target, topic: str, **options: str) -> DataFrame:
    """All of a topic, by either contender."""
    reader = spark.read.format(FORMATS[name]).option("startingOffsets", "earliest")
    frame: DataFrame = _from(reader, target, topic, options).load()
    return frame


def read_stream(
    spark: SparkSession, name: str, target: Target, topic: str, **options: str
) -> DataFrame:
    """What comes from now on."""
    frame: DataFrame = _from(spark.readStream.format(FORMATS[name]), target, topic, options).load()
    return frame


def _from(reader: Any, target: Target, topic: str, options: Mapping[str, str]) -> Any:
    reader = reader.option("kafka.bootstrap.servers", target.bootstrap).option("subscribe", topic)
    return reader.options(**options)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def cpu_seconds() -> float:
    """What this process and all that it started have used: brokers, Spark, Python's workers."""
    total = 0.0
    for process in (this := psutil.Process(), *this.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            total += times.user + times.system
            total += times.children_user + times.children_system  # of those that have ended
    return total


def into_noop(frame: DataFrame) -> None:
    """Have Spark make every row, and throw it away."""
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def running_query(writer: Any) -> Iterator[StreamingQuery]:
    """A query with a checkpoint of its own, stopped and removed at the end."""
    checkpoint = Path(tempfile.mkdtemp(prefix="bench-checkpoint-"))
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def wait_until(query: StreamingQuery, condition: Callable[[], bool], seconds_max: float) -> None:
    """Raises what the query failed with, if it does, and `TimeoutError`."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() > deadline:
            raise TimeoutError(f"query {query.name} is slower than expected")
        time.sleep(0.05)


@contextmanager
def produced_every(pause_seconds: float, target: Target, topic: str) -> Iterator[None]:
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
