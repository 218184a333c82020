"""Writing a topic from Spark: exactly once beside at least once, ours and the connector's.

Bids (198 bytes) with a key, from Parquet files, `local[2]`, into a topic of 2 partitions; a batch
job of all files, and a stream that takes two files a batch, each a task. Every contender reads the
same files, so that the sinks are what differs. The connector knows at least once only.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bids import json_bids
from benchmarks.measurement import Measurement, compare
from benchmarks.spark import (
    CONNECTOR,
    FORMATS,
    OURS,
    WARM_UP_ROUNDS,
    running_query,
    seconds,
    spark_session,
)
from benchmarks.targets import Scale, Target, create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
ROWS = 1_000_000
FILES = 8
FILES_PER_BATCH = 2
STREAM_SECONDS_MAX = 300
AT_LEAST_ONCE = "at least once"
# By the measurements' names, the format and its options.
SINKS: dict[str, tuple[str, dict[str, str]]] = {
    OURS: (FORMATS[OURS], {"delivery": "exactly-once"}),
    AT_LEAST_ONCE: (FORMATS[OURS], {"delivery": "at-least-once"}),
    CONNECTOR: (FORMATS[CONNECTOR], {}),
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    files = Path(tempfile.mkdtemp(prefix="bench-bids-"))
    try:
        with spark_session() as spark:
            _write_files(files, scale.of(ROWS))
            for target in targets:
                yield from _measure(spark, target, files, scale, "batch", _write_batch)
                yield from _measure(spark, target, files, scale, "stream", _write_stream)
    finally:
        shutil.rmtree(files)


def _write_files(files: Path, count: int) -> None:
    """The same bids in each of them, with other keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = json_bids(count // FILES)
    for number in range(FILES):
        keys = [b"%d" % (number + FILES * row) for row in range(len(values))]
        table = pa.table({"key": pa.array(keys), "value": pa.array(values)})
        pq.write_table(table, files / f"bids-{number}.parquet", compression="none")


def _measure(
    spark: SparkSession,
    target: Target,
    files: Path,
    scale: Scale,
    kind: str,
    write: Callable[[SparkSession, Target, Path, str], float],
) -> Iterator[Measurement]:
    rows = scale.of(ROWS) // FILES * FILES
    figure = Measurement(
        f"Spark writes {target.name} exactly once, {kind}",
        "rows/s",
        bar=1.5,
        aim=2.0,
        peer=CONNECTOR,
    )

    def rate(name: str) -> float:
        return rows / write(spark, target, files, name)

    contenders = {name: partial(rate, name) for name in SINKS}
    yield compare(figure, contenders, scale.rounds, warm_up=WARM_UP_ROUNDS, shown=True)
    cost = Measurement(f"{figure.name}, by our at least once", "µs/row", "lower is better", bar=1.3)
    cost.peer = AT_LEAST_ONCE
    for name in (OURS, AT_LEAST_ONCE):
        cost.samples[name] = [1e6 / rate for rate in figure.samples[name]]
    yield cost


def _write_batch(spark: SparkSession, target: Target, files: Path, name: str) -> float:
    source, options = SINKS[name]
    topic = create_topic(target, partitions=PARTITIONS)
    writer = spark.read.parquet(str(files)).write.format(source).mode("append").options(**options)
    writer = writer.option("kafka.bootstrap.servers", target.bootstrap).option("topic", topic)
    return seconds(writer.save)


def _write_stream(spark: SparkSession, target: Target, files: Path, name: str) -> float:
    source, options = SINKS[name]
    topic = create_topic(target, partitions=PARTITIONS)
    frame = (
        spark.readStream.schema("key binary, value binary")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .parquet(str(files))
    )
    writer = (
        frame.writeStream.format(source)
        .options(**options)
        .option("kafka.bootstrap.servers", target.bootstrap)
        .option("topic", topic)
        .trigger(availableNow=True)
    )
    with running_query(writer) as query:
        return seconds(lambda: query.awaitTermination(STREAM_SECONDS_MAX))
