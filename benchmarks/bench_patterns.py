"""Patterns on Spark with durable state, in rows per CPU second of all processes.

    p1        A B+ C within a minute: u < 10, 10 <= u < 60, u >= 60
    p2        A B within a minute: u < 3, u >= 95
    v         S D+ U within a minute: u falls, and rises
    tail      A B+ C within a minute: u < 10, any, never; attempts end with their minute

Rows are 25 microseconds apart, of 1,000, 100,000 and 1,000,000 keys, in files of Parquet, each a
micro-batch of five seconds: no attempt of `tail` ends during a run. `local[2]`, state in RocksDB.
The first batches of a query, in which workers start and the just-in-time compiler works, are left
out. The result is thrown away. `--queries p1,v` measures only these.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measurement import Measurement
from benchmarks.nexmark import STATE_SETTINGS
from benchmarks.spark import (
    QUERY_SECONDS_MAX,
    cpu_seconds,
    running_query,
    spark_session,
    with_settings,
)
from benchmarks.targets import Scale, Target
from millstream.pipelines.patterns import Pattern, match

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 200_000  # of a batch
BATCHES, WARM_UP = 6, 2
KEYS = (1_000, 100_000, 1_000_000)
ROW_US = 25
SCHEMA = "k long, at timestamp, u long"
EVERY: dict[str, Any] = {"key": "k", "time": "at", "within": "1 minute"}
MEASURES = {"n": "count(*)", "began": "first(at)", "ended": "last(at)"}
PATTERNS = {
    "p1": match(
        "A B+ C",
        where={"A": "u < 10", "B": "u >= 10 and u < 60", "C": "u >= 60"},
        **EVERY,
        **MEASURES,
    ),
    "p2": match("A B", where={"A": "u < 3", "B": "u >= 95"}, **EVERY, **MEASURES),
    "v": match(
        "S D+ U",
        where={"D": "u < prev(u)", "U": "u > prev(u)"},
        **EVERY,
        **MEASURES,
    ),
    "tail": match(
        "A B+ C", where={"A": "u < 10", "B": "u < 100", "C": "u > 100"}, **EVERY, **MEASURES
    ),
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    cases = [(name, keys) for keys in KEYS for name in ("p1", "p2", "v")] + [("tail", KEYS[0])]
    cases = [it for it in cases if not scale.queries or it[0] in scale.queries]
    with spark_session() as spark, with_settings(spark, STATE_SETTINGS):
        for name, keys in cases[:1] + cases[-1:] if scale.is_quick else cases:
            figure = Measurement(f"pattern {name}, {keys:,} keys, CPU", "rows/s of a core")
            for _ in range(scale.rounds):
                figure.add("millstream", _rate(spark, PATTERNS[name], keys, scale.of(ROWS)))
            yield figure


def events(first: int, count: int, keys: int) -> pa.Table:
    """Rows by number: the values follow from it without a generator of random numbers."""
    number = np.arange(first, first + count)
    u = ((number % 1_000_003) ** 2 * 31 + number * 17) % 100_003 % 100
    at = pa.array(number * ROW_US).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"k": number * 7919 % keys, "at": at, "u": u})


def _rate(spark: SparkSession, pattern: Pattern, keys: int, rows: int) -> float:
    """Rows per CPU second, without the first batches."""
    begun: list[float] = []

    def sink(frame: Any, number: int) -> None:
        if number == WARM_UP:
            begun.append(cpu_seconds())
        frame.write.format("noop").mode("overwrite").save()

    with tempfile.TemporaryDirectory(prefix="bench-patterns-") as directory:
        for number in range(BATCHES):
            path = Path(directory) / f"{number:03}.parquet"
            pq.write_table(events(number * rows, rows, keys), path, row_group_size=rows // 2)
            os.utime(path, (number, number))  # Spark takes the oldest first
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(directory).withWatermark("at", "1 second").transform(pattern)
        writer = frame.writeStream.queryName(uuid.uuid4().hex).foreachBatch(sink)
        with running_query(writer.trigger(availableNow=True)) as query:
            assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
            used = cpu_seconds() - begun[0]
    return (BATCHES - WARM_UP) * rows / used
