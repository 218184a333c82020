"""An operator that counts rows by shop and minute, rightly, and four that do not.

    MinuteCounts   right: results come when the watermark reaches the end of the minute
    CountsLate     counts a row whose minute is over
    ForgetsState   forgets what it knows when another query goes on
    MissesTimer    sets its timer for a day that never comes

and a function that adds up in a file, where a batch that is repeated is added twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import with_hash
from millstream.pipelines.state.spark import run_operator
from millstream.pipelines.state.tables import concat, times_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = pa.schema([("shop", pa.string()), ("minute_end", pa.timestamp("us", tz="UTC"))])
COUNTS = pa.schema([*ROWS, ("n", pa.int64())])
RUN = pa.schema([("run", pa.string())])


def counts_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    counts = Counter((row["shop"], row["minute_end"]) for row in rows.to_pylist())
    found = [{"shop": shop, "minute_end": end, "n": n} for (shop, end), n in counts.items()]
    return pa.RecordBatch.from_pylist(found, schema=COUNTS)


class MinuteCounts(Operator):
    """As it should be."""

    identity = "counts by minute"
    inputs: Mapping[str, InputSpec] = {"rows": InputSpec(ROWS, ("shop",))}
    tables: Mapping[str, StateTableSpec] = {
        "rows": StateTableSpec(ROWS, ("shop",), "minute_end"),
        "run": StateTableSpec(RUN, ("run",), None),
    }
    schema_out = COUNTS

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        state["rows"].append(self.on_time(rows["rows"], watermark_us))
        return self.on_timer(state, watermark_us)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        due = state["rows"].select(last_us=watermark_us)
        state["rows"].expire(watermark_us + 1)
        left_us = times_of(state["rows"].select(), "minute_end")
        state.wake_at(self.wake_us(int(left_us.min())) if len(left_us) else None)
        return counts_of(due)

    def on_time(self, rows: pa.RecordBatch, watermark_us: int) -> pa.RecordBatch:
        return rows.filter(pa.array(times_of(rows, "minute_end") > watermark_us))

    def wake_us(self, time_us: int) -> int:
        return time_us


class CountsLate(MinuteCounts):
    """Tables do not take rows behind what they were told to forget; so it counts them beside."""

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        is_late = times_of(rows["rows"], "minute_end") <= watermark_us
        late = counts_of(rows["rows"].filter(pa.array(is_late)))
        return concat([super().process(state, rows, watermark_us), late])


class ForgetsState(MinuteCounts):
    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        context = TaskContext.get()
        run = context.getLocalProperty("spark.jobGroup.id") if context else None
        known = state["run"].select()
        if known.num_rows and known.column("run")[0].as_py() != run:
            state["rows"].take(state["rows"].select())
            state["run"].take(known)
            known = known.slice(0, 0)
        if not known.num_rows:
            noted = pa.RecordBatch.from_pylist([{"run": run}], schema=RUN)
            state["run"].append(with_hash(noted, ("run",)))
        return super().process(state, rows, watermark_us)


class MissesTimer(MinuteCounts):
    def wake_us(self, time_us: int) -> int:
        return time_us + 500 * 365 * 86_400_000_000


def minute_counts(orders: DataFrame, operator: Operator) -> DataFrame:
    from pyspark.sql.functions import expr

    end = expr("date_trunc('minute', at) + interval 1 minute").alias("minute_end")
    return run_operator(operator, {"rows": orders.select("shop", end)}, 2)


def count_in_file(orders: DataFrame, directory: Path) -> DataFrame:
    """Of each shop the number of rows so far, kept where no checkpoint knows of it."""
    if not orders.isStreaming:
        return orders.groupBy("shop").count()

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        file = directory / context.getLocalProperty("sql.streaming.queryId")
        new = [row["shop"] for batch in batches for row in batch.to_pylist()]
        with file.open("a") as appending:
            appending.writelines(f"{shop}\n" for shop in new)
        counts = Counter(file.read_text().split())
        yield pa.RecordBatch.from_pydict(
            {"shop": sorted(set(new)), "count": [counts[it] for it in sorted(set(new))]},
            schema=pa.schema([("shop", pa.string()), ("count", pa.int64())]),
        )

    return orders.select("shop").coalesce(1).mapInArrow(add, "shop string, count bigint")
