"""Reading topics into Spark: `format("millstream")` beside Spark's own Kafka connector.

One session, `local[2]`, the same topic of bids (198 bytes of JSON) in 2 partitions, into `noop`.
Raw: the seven columns of a record. Typed: the seven fields of a bid; the connector's value goes
through `from_json`. Bad records are nulls there and dead letters here, which are written to a topic
within the measured time. Planning is measured too, ours in Python. The CPU time of all processes
stands beside: on a busy machine it tells more than the rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bids import SCHEMA, json_bids
from benchmarks.measurement import Measurement, compare
from benchmarks.spark import (
    CONNECTOR,
    OURS,
    WARM_UP_ROUNDS,
    cpu_seconds,
    fill,
    into_noop,
    read,
    seconds,
    spark_session,
)
from benchmarks.targets import Scale, Target, create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
ROWS = 1_000_000
DISTINCT_BIDS = 50_000
BAD_SHARES = (0.0, 0.001, 0.01)


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with spark_session() as spark:
        for target in targets:
            for share in BAD_SHARES:
                topic = topic_of_bids(target, scale, share)
                if share == 0:
                    yield raw(spark, target, topic, scale)
                note, warm_up = (f", {share:.1%} bad", 1) if share else ("", WARM_UP_ROUNDS)
                yield typed(spark, target, topic, scale, note, warm_up)


def topic_of_bids(target: Target, scale: Scale, bad_share: float = 0.0) -> str:
    topic = create_topic(target, partitions=PARTITIONS)
    values = json_bids(min(DISTINCT_BIDS, scale.of(ROWS)), bad_share)
    fill(target, topic, values, scale.of(ROWS), partitions=PARTITIONS)
    return topic


def raw(
    spark: SparkSession, target: Target, topic: str, scale: Scale, note: str = ""
) -> Measurement:
    frames = {name: read(spark, name, target, topic) for name in (OURS, CONNECTOR)}
    figure = Measurement(
        f"Spark reads raw rows from {target.name}{note}", "rows/s", bar=1.5, aim=2.0, peer=CONNECTOR
    )
    return _rates(figure, frames, scale)


def typed(
    spark: SparkSession,
    target: Target,
    topic: str,
    scale: Scale,
    note: str = "",
    warm_up: int = WARM_UP_ROUNDS,
) -> Measurement:
    frames = {
        OURS: typed_by_us(spark, target, topic),
        CONNECTOR: typed_by_spark(read(spark, CONNECTOR, target, topic)),
    }
    figure = Measurement(
        f"Spark reads typed rows from {target.name}{note}",
        "rows/s",
        bar=2.5,
        aim=3.0,
        peer=CONNECTOR,
    )
    return _rates(figure, frames, scale, warm_up)


def typed_by_us(spark: SparkSession, target: Target, topic: str) -> DataFrame:
    reader = spark.read.format("millstream").schema(SCHEMA)
    return reader.options(
        **{
            "kafka.bootstrap.servers": target.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "valueFormat": "json",
            "mode": "deadletter",
        }
    ).load()


def typed_by_spark(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import col, from_json

    bid = from_json(col("value").cast("string"), SCHEMA)
    return frame.select(bid.alias("bid")).select("bid.*")


def _rates(
    figure: Measurement,
    frames: dict[str, DataFrame],
    scale: Scale,
    warm_up: int = WARM_UP_ROUNDS,
) -> Measurement:
    cpu: dict[str, list[float]] = {name: [] for name in frames}

    def rate(name: str) -> float:
        before = cpu_seconds()
        took = seconds(lambda: into_noop(frames[name]))
        cpu[name].append((cpu_seconds() - before) / scale.of(ROWS) * 1e6)
        return scale.of(ROWS) / took

    contenders = {name: partial(rate, name) for name in frames}
    compare(figure, contenders, scale.rounds, warm_up=warm_up, shown=True)
    figure.notes = {name: f"{min(it):.1f} µs of CPU a row, all in all" for name, it in cpu.items()}
    return figure
