"""The floor: how long a micro-batch on Spark takes that has next to nothing in it.

Ours with our settings beside the connector with Spark's defaults, in one session, `local[2]`, from
a topic into which a record is written every 10 ms, into `noop`, with the trigger as fast as
possible; without state, and with a count by partition.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measurement import Measurement, compare
from benchmarks.spark import (
    CONNECTOR,
    FORMATS,
    OURS,
    QUERY_SECONDS_MAX,
    SETTINGS,
    produced_every,
    read_stream,
    running_query,
    spark_session,
    wait_until,
    with_settings,
)
from benchmarks.targets import Scale, Target, create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRICKLE_SECONDS = 0.01
BATCHES = 45  # of which the first third is left out
BATCHES_MIN = 4
SECONDS = 20.0  # for those that are slow: then what there is counts


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with spark_session() as spark:
        yield _floor(spark, targets[0], scale, "stateless", _as_it_is, 0.7)
        yield _floor(spark, targets[0], scale, "stateful", _counted, 0.4)


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
    topic = create_topic(target, partitions=1)
    figure = Measurement(
        f"small micro-batch, {kind}, p50", "ms", "lower is better", bar=bar, peer=CONNECTOR
    )
    figure.notes = {OURS: "our settings", CONNECTOR: "Spark's defaults"}

    def sample(name: str) -> float:
        with with_settings(spark, SETTINGS[name]):
            frame = transform(read_stream(spark, name, target, topic))
            return median(_batch_times(frame, scale))

    with produced_every(TRICKLE_SECONDS, target, topic):
        contenders = {name: partial(sample, name) for name in FORMATS}
        return compare(figure, contenders, scale.rounds, warm_up=1, shown=True)


def _batch_times(frame: DataFrame, scale: Scale) -> list[float]:
    """How long batches took that had records, in ms, the first third of them left out."""
    name = f"floor-{uuid.uuid4().hex[:8]}"
    writer = frame.writeStream.format("noop").queryName(name).outputMode("update")
    wanted = int(BATCHES * scale.factor)
    with running_query(writer) as query:
        deadline = time.monotonic() + scale.seconds(SECONDS)

        def times() -> list[float]:
            recent = [it for it in query.recentProgress if it.numInputRows]
            return [float(it.durationMs["triggerExecution"]) for it in recent]

        def is_enough() -> bool:
            found = len(times())
            return found >= BATCHES_MIN and (found >= wanted or time.monotonic() > deadline)

        wait_until(query, is_enough, QUERY_SECONDS_MAX)
        found = times()
    return found[len(found) // 3 :]
