"""What Python state in buckets costs: sliding windows and joins beside Spark's tumbling windows.

Events of 1,000, 50,000 and 1,000,000 keys, evenly spread. Sliding windows: count, sum and maximum
over the last 10 seconds, for every event, with 20 seconds of them in a window and its allowed
lateness. As-of join: each event with the version of its key that was valid then, a version for
every tenth event. Stream-table join: each event with its key's row of a table that has all keys
from the first batch on, and a change for every tenth event. Native tumbling windows of 10 seconds,
which answer once per key and window, are the peer: an equal amount of keys and rows through the
same shuffle. All by the CPU that they took, of Spark and its workers together, since machines are
shared: rows in a second of one core. First the sliding window alone, without Spark.

BENCH_STATE_KEYS=50000 measures that number of keys only.
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
from benchmarks.spark import QUERY_SETTINGS, cpu_seconds, spark_session, with_settings
from benchmarks.targets import Scale, Target
from millstream.pipelines.joins import as_of_join, enrich
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows import sliding
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.sliding import SlidingWindow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNIT = "rows/s of a core"
KEYS = (1_000, 50_000, 1_000_000)
ROWS = 200_000  # in a batch
BATCHES = 8
WARM_UP_BATCHES = 3
VERSION_EVERY = 10  # events
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
    found: dict[str, dict[int, Measurement]] = {}
    with spark_session() as spark, with_settings(spark, STATE_SETTINGS):
        for keys in chosen_keys():
            for kind, measured in beside_tumbling(spark, keys, scale).items():
                found.setdefault(kind, {})[keys] = measured
                yield measured
    for kind, rates in found.items():
        few, many = min(rates), max(rates)
        flat = Measurement(
            f"{kind} of {many:,} keys beside {few:,}", UNIT, bar=0.5, peer=f"{few:,}"
        )
        flat.samples = {"millstream": rates[many].samples["millstream"]}
        flat.samples[flat.peer] = rates[few].samples["millstream"]
        yield flat


def chosen_keys() -> tuple[int, ...]:
    given = os.environ.get("BENCH_STATE_KEYS")
    return KEYS if given is None else tuple(int(it) for it in given.split(","))


def alone(scale: Scale) -> Measurement:
    """The operator, its state as bytes after every batch, per second of one core."""
    figure = Measurement("sliding windows without Spark, 1,000,000 keys", UNIT, bar=0.5)
    figure.peer = "1,000"
    contenders = {
        "1,000": partial(cpu_rate, KEYS[0], scale),
        "50,000": partial(cpu_rate, KEYS[1], scale),
        "millstream": partial(cpu_rate, KEYS[2], scale),
    }
    return compare(figure, contenders, scale.rounds, warm_up=1, shown=True)


def cpu_rate(keys: int, scale: Scale) -> float:
    policy = Lateness("drop", INTERVAL_US)
    window = SlidingWindow(SCHEMA, ["user"], "time", INTERVAL_US, MEASURES, policy, SCHEMA.names)
    trial = Trial(window, buckets=16)
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


def every_key(keys: int) -> pa.Table:
    times = pa.array(np.zeros(keys, np.int64)).cast(SCHEMA.field("time").type)
    amounts = np.random.default_rng(keys).random(keys)
    return pa.table([pa.array(np.arange(keys)), times, pa.array(amounts)], schema=SCHEMA)


def write_batches(directory: Path, keys: int, scale: Scale) -> None:
    """A file for each batch of events, in two parts, one for each core; one of versions, and one of
    a table's changes, the first of which has all keys."""
    for number in range(BATCHES):
        rows = pa.Table.from_batches([events(number, keys, scale.of(ROWS))])
        versions = rows.slice(0, rows.num_rows // VERSION_EVERY)
        changes = versions if number else every_key(keys)
        for name, table in (("events", rows), ("versions", versions), ("changes", changes)):
            path = directory / name / f"{number:03}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(table, path, row_group_size=-(-rows.num_rows // 2))
            os.utime(path, (number, number))  # Spark reads them in this order


def beside_tumbling(spark: SparkSession, keys: int, scale: Scale) -> dict[str, Measurement]:
    from pyspark.sql.functions import count, max, sum, window

    found = {}
    with tempfile.TemporaryDirectory() as directory:
        write_batches(Path(directory), keys, scale)
        stream = read(spark, f"{directory}/events").withWatermark("time", "1 second")
        versions = read(spark, f"{directory}/versions").toDF("user", "since", "rate")
        table = read(spark, f"{directory}/changes").toDF("user", "since", "rate")
        queries = {
            "sliding windows": stream.transform(
                sliding(
                    "10 seconds",
                    key="user",
                    time="time",
                    emit="final",
                    allowed_lateness="10 seconds",
                    n="count(*)",
                    spent="sum(amount)",
                    most="max(amount)",
                )
            ),
            "as-of joins": stream.transform(
                as_of_join, versions, "user", time="time", valid_from="since"
            ),
            "stream-table joins": stream.transform(enrich, table, "user", sequence="since"),
        }
        tumbling = stream.groupBy("user", window("time", "10 seconds")).agg(
            count("*"), sum("amount"), max("amount")
        )
        contenders = {name: partial(rate, it) for name, it in queries.items()}
        contenders["tumbling"] = partial(rate, tumbling)
        both = compare(
            Measurement(f"{keys:,} keys", UNIT), contenders, scale.rounds, warm_up=1, shown=True
        )
    for name in queries:
        figure = Measurement(f"{name}, {keys:,} keys", UNIT, bar=0.2, aim=1.0, peer="tumbling")
        figure.samples = {
            "millstream": both.samples[name],
            "tumbling": both.samples["tumbling"],
        }
        found[name] = figure
    return found


def read(spark: SparkSession, directory: str) -> DataFrame:
    columns = "user long, time timestamp, amount double"
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(directory)


def rate(frame: DataFrame) -> float:
    """Rows of events by the CPU of the batches after the first few, which build state up."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        begun = None
        while not query.awaitTermination(0.1):
            last = query.lastProgress
            if begun is None and last is not None and last.batchId >= WARM_UP_BATCHES - 1:
                begun = cpu_seconds()
        took = cpu_seconds() - (begun or 0.0)
        rows = [it.sources[0].numInputRows for it in query.recentProgress if it.numInputRows]
    return sum(rows[WARM_UP_BATCHES:]) / took
