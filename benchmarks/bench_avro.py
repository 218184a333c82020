"""Reading Avro into Spark: `valueFormat=avro` beside Spark's own Kafka connector and `from_avro`.

One session, `local[2]`, the same topic of bids (94 bytes of Avro, 7 fields) in 2 partitions,
into `noop`. Every field is a union with null, as Spark's `to_avro` and most producers write it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
from tests.peers.spark_connector import avro_jars

from benchmarks.bids import SCHEMA, make_bids
from benchmarks.measurement import Measurement, compare
from benchmarks.spark import (
    CONNECTOR,
    OURS,
    WARM_UP_ROUNDS,
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
ROWS = 2_000_000
DISTINCT_BIDS = 50_000
TYPES = {
    "auction": "long",
    "bidder": "long",
    "price": "long",
    "channel": "string",
    "url": "string",
    "dateTime": {"type": "long", "logicalType": "timestamp-micros"},
    "extra": "string",
}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Bid",
    "fields": [{"name": name, "type": ["null", kind]} for name, kind in TYPES.items()],
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    with spark_session(jars=avro_jars()) as spark:
        for target in targets:
            yield _typed(spark, target, scale)


def avro_bids(count: int) -> list[bytes]:
    parsed = fastavro.parse_schema(AVRO_SCHEMA)
    return [_encoded(parsed, bid) for bid in make_bids(count)]


def _encoded(parsed: Any, bid: dict[str, Any]) -> bytes:
    stream = BytesIO()
    moment = datetime.fromisoformat(bid["dateTime"])
    fastavro.schemaless_writer(stream, parsed, bid | {"dateTime": moment})
    return stream.getvalue()


def _typed(spark: SparkSession, target: Target, scale: Scale) -> Measurement:
    rows = scale.of(ROWS)
    topic = create_topic(target, partitions=PARTITIONS)
    fill(target, topic, avro_bids(min(rows, DISTINCT_BIDS)), rows, partitions=PARTITIONS)
    frames = {OURS: _ours(spark, target, topic), CONNECTOR: _connector(spark, target, topic)}
    measurement = Measurement(
        f"Avro rows from {target.name} into noop", "rows/s", bar=3.0, peer=CONNECTOR
    )
    contenders = {name: partial(_rate, frame, rows) for name, frame in frames.items()}
    return compare(measurement, contenders, scale.rounds, warm_up=WARM_UP_ROUNDS)


def _rate(frame: DataFrame, rows: int) -> float:
    return rows / seconds(lambda: into_noop(frame))


def _ours(spark: SparkSession, target: Target, topic: str) -> DataFrame:
    frame: DataFrame = (
        spark.read.format("millstream")
        .schema(SCHEMA)
        .option("kafka.bootstrap.servers", target.bootstrap)
        .option("subscribe", topic)
        .option("valueFormat", "avro")
        .option("avroSchema", json.dumps(AVRO_SCHEMA))
        .load()
    )
    return frame


def _connector(spark: SparkSession, target: Target, topic: str) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    raw = read(spark, CONNECTOR, target, topic)
    return raw.select(from_avro("value", json.dumps(AVRO_SCHEMA)).alias("bid")).select("bid.*")
