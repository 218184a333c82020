"""What Python state in buckets costs: exact sliding windows beside Spark's own tumbling ones.

Events of 1,000, 50,000 and 1,000,000 keys, evenly spread, 20 seconds of them in a window and its
allowed lateness; count, sum and maximum over the last 10 seconds, for every event. Native tumbling
windows of 10 seconds, which answer once per key and window, are the peer: an equal amount of keys
and rows through the same shuffle. First the operator alone, on one core and without Spark.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measurement import Measurement, compare
from benchmarks.spark import QUERY_SETTINGS, spark_session, with_settings
from benchmarks.targets import Scale, Target
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.sliding import Policy, SlidingWindow, sliding_window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = (1_000, 50_000, 1_000_000)
ROWS = 200_000  # in a batch
BATCHES = 8
WARM_UP_BATCHES = 3
BATCH_US = 5_000_000
INTERVAL_US = 10_000_000
SCHEMA = pa.schema(
    [("user", pa.int64()), ("time", pa.timestamp("us", tz="UTC")), ("amount", pa.float64())]
)
MEASURES = (
    Measure("n", "count", None),
    Measure("spent", "sum", "amount"),
    Measure("most", "max", "amount"),
)
STATE_SETTINGS = QUERY_SETTINGS | {
    STORE_PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    yield alone(scale)
    rates: dict[int, Measurement] = {}
    with spark_session() as spark, with_settings(spark, STATE_SETTINGS):
        for keys in KEYS:
            with tempfile.TemporaryDirectory() as directory:
                write_events(Path(directory), keys, scale)
                rates[keys] = beside_tumbling(spark, directory, keys, scale)
                yield rates[keys]
    flat = Measurement(
        "sliding windows of a million keys beside a thousand", "rows/s", bar=0.5, peer="1,000"
    )
    flat.samples = {"millstream": rates[KEYS[-1]].samples["millstream"]}
    flat.samples["1,000"] = rates[KEYS[0]].samples["millstream"]
    yield flat


def alone(scale: Scale) -> Measurement:
    """The operator, its state as bytes after every batch, per second of one core."""
    figure = Measurement("sliding windows without Spark, 1,000,000 keys", "rows/s", bar=0.5)
    figure.peer = "1,000"
    contenders = {
        "1,000": partial(cpu_rate, KEYS[0], scale),
        "50,000": partial(cpu_rate, KEYS[1], scale),
        "millstream": partial(cpu_rate, KEYS[2], scale),
    }
    return compare(figure, contenders, scale.rounds, warm_up=1, shown=True)


def cpu_rate(keys: int, scale: Scale) -> float:
    policy = Policy("drop", INTERVAL_US)
    window = SlidingWindow(SCHEMA, ["user"], "time", INTERVAL_US, MEASURES, policy, SCHEMA.names)
    trial = Trial(window, bucket_count=16)
    begun = 0.0
    for number in range(BATCHES):
        rows = events(number, keys, scale.of(ROWS))
        if number == WARM_UP_BATCHES:
            begun = time.process_time()
        trial.feed({"events": rows}, number * BATCH_US - 1_000_000)
    return (BATCHES - WARM_UP_BATCHES) * scale.of(ROWS) / (time.process_time() - begun)


def events(number: int, keys: int, count: int) -> pa.RecordBatch:
    rng = np.random.default_rng(number)
    times = number * BATCH_US + rng.integers(0, BATCH_US, count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(rng.integers(0, keys, count)),
            pa.array(times).cast(SCHEMA.field("time").type),
            pa.array(rng.random(count) * 100),
        ],
        schema=SCHEMA,
    )


def write_events(directory: Path, keys: int, scale: Scale) -> None:
    """A file for each batch, in two parts: one for each core."""
    for number in range(BATCHES):
        count = scale.of(ROWS)
        path = directory / f"{number:03}.parquet"
        table = pa.Table.from_batches([events(number, keys, count)])
        pq.write_table(table, path, row_group_size=-(-count // 2))
        os.utime(path, (number, number))  # Spark reads them in this order


def beside_tumbling(spark: SparkSession, directory: str, keys: int, scale: Scale) -> Measurement:
    from pyspark.sql.functions import count, max, sum, window

    stream = (
        spark.readStream.schema("user long, time timestamp, amount double")
        .option("maxFilesPerTrigger", 1)
        .parquet(directory)
        .withWatermark("time", "1 second")
    )
    ours = stream.transform(
        sliding_window,
        "user",
        "time",
        "10 seconds",
        n="count(*)",
        spent="sum(amount)",
        most="max(amount)",
    )
    tumbling = stream.groupBy("user", window("time", "10 seconds")).agg(
        count("*"), sum("amount"), max("amount")
    )
    figure = Measurement(
        f"sliding windows, {keys:,} keys", "rows/s", bar=0.2, aim=1.0, peer="tumbling"
    )
    contenders = {"millstream": partial(rate, ours), "tumbling": partial(rate, tumbling)}
    return compare(figure, contenders, scale.rounds, warm_up=1, shown=True)


def rate(frame: DataFrame) -> float:
    """Rows by the time of the batches that had any, without the first few, which build state up."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [it for it in query.recentProgress if it.numInputRows][WARM_UP_BATCHES:]
    milliseconds = sum(it.durationMs["triggerExecution"] for it in batches)
    return sum(it.numInputRows for it in batches) / milliseconds * 1000
