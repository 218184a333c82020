"""What the operators of analytics cost, per row and core, and that it hardly depends on the keys.

The pure operators, without Spark, their state as bytes after every batch as on Spark: events of
1,000, 50,000 and 1,000,000 keys, evenly spread, as in bench_state. With few keys deduplication
passes next to nothing and heavy hitters have room for all, so that these are bound to be quicker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from benchmarks.bench_state import (
    BATCH_US,
    BATCHES,
    INTERVAL_US,
    KEYS,
    ROWS,
    SCHEMA,
    WARM_UP_BATCHES,
    events,
)
from benchmarks.measurement import Measurement, compare
from benchmarks.targets import Scale, Target
from millstream.pipelines.analytics.averages import Smoothing
from millstream.pipelines.analytics.deduplication import Deduplication
from millstream.pipelines.analytics.heavy_hitters import HeavyHitters
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state import Operator
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.sliding import Measure, SlidingWindow

SMOOTHED = pa.schema([*SCHEMA.remove(2), pa.field("_smoothed", pa.float64())])
POLICY = Lateness("drop", INTERVAL_US)


def rolling_average() -> Operator:
    measures = [Measure("n", "count", None), Measure("mean", "avg", "amount")]
    return SlidingWindow(SCHEMA, ["user"], "time", INTERVAL_US, measures, POLICY, SCHEMA.names)


def rolling_percentile() -> Operator:
    measures = [Measure("p95", "percentile", "amount", 0.95)]
    return SlidingWindow(SCHEMA, ["user"], "time", INTERVAL_US, measures, POLICY, SCHEMA.names)


def z_score() -> Operator:
    kinds = ("count", "min", "max", "avg", "stddev")
    measures = [Measure(kind, kind, "amount") for kind in kinds]
    names = SCHEMA.names
    window = SCHEMA, ["user"], "time", INTERVAL_US, measures, POLICY, names
    return SlidingWindow(*window, preceding=True)


def weighted_average() -> Operator:
    return Smoothing(SMOOTHED, ["user"], "time", INTERVAL_US, 32 * INTERVAL_US, 0, 3.0, 10)


def deduplication() -> Operator:
    return Deduplication(SCHEMA, ["user"], "time", INTERVAL_US, 0)


def heavy_hitters() -> Operator:
    return HeavyHitters(SCHEMA, ["user"], "time", "amount", 2 * BATCH_US, 10, 10_000)


OPERATORS: dict[str, Callable[[], Operator]] = {
    "rolling average per event": rolling_average,
    "rolling percentile per event": rolling_percentile,
    "z-score per event": z_score,
    "weighted average per event": weighted_average,
    "deduplication": deduplication,
    "heavy hitters": heavy_hitters,
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for name, make in OPERATORS.items():
        few, some, many = KEYS
        figure = Measurement(f"{name}, {many:,} keys", "rows/s", bar=0.5, peer=f"{few:,}")
        contenders = {
            f"{few:,}": partial(rate, make, few, scale),
            f"{some:,}": partial(rate, make, some, scale),
            "millstream": partial(rate, make, many, scale),
        }
        yield compare(figure, contenders, scale.rounds, warm_up=1, shown=True)


def rate(make: Callable[[], Operator], keys: int, scale: Scale) -> float:
    """Rows per second of one core, once there is state."""
    operator = make()
    trial = Trial(operator, buckets=16)
    schema = operator.inputs["events"].schema
    begun = 0.0
    for number in range(BATCHES):
        rows = events(number, keys, scale.of(ROWS)).rename_columns(schema.names)
        if number == WARM_UP_BATCHES:
            begun = time.process_time()
        trial.feed({"events": rows}, number * BATCH_US - 1_000_000)
    return (BATCHES - WARM_UP_BATCHES) * scale.of(ROWS) / (time.process_time() - begun)
