"""Nexmark's queries as streams: our reader and library beside Spark's connector and the same SQL.

One session, `local[2]`, one broker, one topic for each kind of event, 1.5 million events in three
micro-batches. Both contenders run the same function of `examples/nexmark` with the same settings;
what differs is who reads. Plain Spark runs q20 with its own join, and cannot run q4, q6 and q9 as
streams: they stand alone.

    python -m benchmarks nexmark --targets kafka --queries q0,q1,q2

A run takes half an hour; cut in pieces, `results/nexmark.json` gathers them, and
`python -m benchmarks.nexmark_report` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measurement import Measurement, compare
from benchmarks.nexmark import EVENTS, STATE_SETTINGS, keep, load, rate, rows_of
from benchmarks.spark import CONNECTOR, OURS, cpu_seconds, spark_session, with_settings
from benchmarks.targets import Scale, Target

if TYPE_CHECKING:
    from examples.nexmark.queries import Query
    from pyspark.sql import SparkSession

INGEST_BOUND = ("q0", "q1", "q2", "q10", "q14", "q21", "q22")
FEW = ("q0", "q9")  # do they still run?


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    from examples.nexmark.queries import QUERIES

    for target in targets:
        load(target.bootstrap, scale.of(EVENTS))
        with spark_session() as spark, with_settings(spark, STATE_SETTINGS):
            for name in scale.queries or (FEW if scale.is_quick else QUERIES):
                yield measure(spark, target, QUERIES[name], scale)


def measure(spark: SparkSession, target: Target, query: Query, scale: Scale) -> Measurement:
    figure = Measurement(
        f"Nexmark {query.name} from {target.name}",
        "rows/s",
        bar=2.0 if query.name in INGEST_BOUND else 0.9,
        peer=CONNECTOR,
    )
    cpu: dict[str, list[float]] = {}

    def sample(reader: str, query: Query) -> float:
        before = cpu_seconds()
        found = rate(spark, reader, query, target.bootstrap, scale.of(EVENTS))
        used = (cpu_seconds() - before) / rows_of(query, scale.of(EVENTS))
        cpu.setdefault(reader, []).append(used * 1e6)
        return found

    contenders = {OURS: partial(sample, OURS, query)}
    if query.plain is not None:
        contenders[CONNECTOR] = partial(sample, CONNECTOR, query.plain)
    compare(figure, contenders, scale.rounds, warm_up=1, shown=True)
    figure.notes = {name: f"{min(it):.1f} µs of CPU a row" for name, it in cpu.items()}
    if scale.is_quick:
        return figure
    keep(
        "queries",
        {
            query.name: {
                "samples": figure.samples,
                "bar": figure.bar,
                "broker": target.name,
                "events": scale.of(EVENTS),
                "cpu_seconds": {
                    name: min(it) * rows_of(query, scale.of(EVENTS)) / 1e6
                    for name, it in cpu.items()
                },
            }
        },
    )
    return figure
