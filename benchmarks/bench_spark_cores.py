"""Does reading scale? `local[1]` beside `local[2]`, raw and typed, ours and the connector.

The broker runs on the same cores, and so do Python's workers beside Spark's tasks: with one core
for tasks the other one is not idle. Each figure is the rate with 2 cores by the rate with 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.bench_spark_read import raw, topic_of_bids, typed
from benchmarks.measurement import Measurement
from benchmarks.spark import CONNECTOR, OURS, spark_session
from benchmarks.targets import Scale, Target

CORES = (1, 2)


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    target = targets[0]
    topic = topic_of_bids(target, scale)
    found: dict[int, tuple[Measurement, Measurement]] = {}
    for cores in CORES:
        with spark_session(cores) as spark:
            note = f", {cores} cores"
            found[cores] = (
                raw(spark, target, topic, scale, note),
                typed(spark, target, topic, scale, note),
            )
    one, two = (found[cores] for cores in CORES)
    for kind, alone, both in zip(("raw", "typed"), one, two, strict=True):
        figure = Measurement(f"Spark reads {kind} rows, 2 cores by 1", "rows/s", peer="1 core")
        for name in (OURS, CONNECTOR):
            figure.samples[name] = both.samples[name]
            figure.samples[f"{name}, 1 core"] = alone.samples[name]
        figure.peer = f"{OURS}, 1 core"
        yield figure
