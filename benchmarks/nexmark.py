"""What the benchmarks of Nexmark share: topics full of its events, and its queries over them as
streams, read by us or by Spark's own connector.

Both get the same settings (`STATE_SETTINGS`): with Spark's defaults, of which 200 partitions for
two cores are one, the connector would have no chance at all, and nothing would be learnt.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from examples.nexmark.generator import (
    AUCTION_SHARE,
    BID_SHARE,
    CYCLE,
    PERSON_SHARE,
    Generator,
    Settings,
)
from examples.nexmark.records import SPARK_SCHEMAS, TOPICS, Encoder, Records, create_topics

from benchmarks.spark import CONNECTOR, FORMATS, OURS, QUERY_SETTINGS
from examples.nexmark import oracle
from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.writing.batching import binary_column
from millstream.records.columns import RowEncoder, encode_batches

if TYPE_CHECKING:
    from examples.nexmark.queries import Query
    from pyspark.sql import DataFrame, SparkSession

EVENTS = 1_500_000
BATCHES = 3
BATCH_BYTES = 1 << 18
PARTITIONS = 2
SHARES = dict(zip(TOPICS, (PERSON_SHARE, AUCTION_SHARE, BID_SHARE), strict=True))  # of CYCLE
DELAY = "5 seconds"  # events are 3 seconds late at most, and partitions not quite abreast
STATE_SETTINGS = QUERY_SETTINGS | {
    STORE_PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
RESULTS = Path(__file__).parent / "results" / "nexmark.json"


def load(bootstrap: str, events: int) -> None:
    """So many events into new topics, each record in turn into each partition."""
    create_topics(bootstrap, PARTITIONS)
    encoder = Encoder()
    with Cluster(bootstrap) as cluster:
        producer = RawProducer(cluster)
        producer.begin()
        for batch in Generator(Settings(events)).batches(1 << 16):
            for records in encoder.encode(batch):
                _send(producer, records)
        producer.flush()


def _send(producer: RawProducer, records: Records) -> None:
    encoder = RowEncoder(records.timestamps_ms.to_numpy(), None, binary_column(records.values))
    for partition in range(PARTITIONS):
        for content, count in encode_batches(
            encoder,
            np.arange(partition, len(records.values), PARTITIONS),
            batch_bytes_max=BATCH_BYTES,
            producer=producer.identity(records.topic, partition),
        ):
            producer.send(records.topic, partition, content, count)


def rows_of(query: Query, events: int) -> int:
    """How many rows a query reads of so many events."""
    return sum(events * SHARES[it] // CYCLE for it in query.tables if it in SHARES)


def streams(
    spark: SparkSession, reader: str, query: Query, bootstrap: str, events: int
) -> dict[str, DataFrame]:
    """The tables of a query, in batches that keep step with each other."""
    found = {"side_input": spark.createDataFrame(oracle.side_input())}
    for kind in query.tables:
        if kind in SHARES:
            options = {
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": kind,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(-(-events * SHARES[kind] // CYCLE // BATCHES)),
            }
            read = _by_us if reader == OURS else _by_connector
            found[kind] = read(spark, kind, options).withWatermark(query.clock, DELAY)
    return found


def _by_us(spark: SparkSession, kind: str, options: Mapping[str, str]) -> DataFrame:
    schema = f"{SPARK_SCHEMAS[kind]}, _timestamp timestamp"
    reader = spark.readStream.format(FORMATS[OURS]).schema(schema).options(**options)
    return reader.option("valueFormat", "json").load().withColumnRenamed("_timestamp", "arrival")


def _by_connector(spark: SparkSession, kind: str, options: Mapping[str, str]) -> DataFrame:
    from pyspark.sql.functions import col, from_json

    frame = spark.readStream.format(FORMATS[CONNECTOR]).options(**options).load()
    event = from_json(col("value").cast("string"), SPARK_SCHEMAS[kind])
    return frame.select(event.alias("event"), col("timestamp").alias("arrival")).select(
        "event.*", "arrival"
    )


def rate(spark: SparkSession, reader: str, query: Query, bootstrap: str, events: int) -> float:
    """Rows a second of the batches after the first, in which plans are made and workers start."""
    answer = query.ask(streams(spark, reader, query, bootstrap, events))
    with tempfile.TemporaryDirectory() as directory:
        writer = _into_sink(answer.writeStream, query, directory).outputMode(query.output_mode)
        writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
        running = writer.trigger(availableNow=True).start()
        running.awaitTermination()
        batches = [it for it in running.recentProgress if it.numInputRows][1:]
    if not batches:
        raise RuntimeError(f"{query.name} by {reader} had one batch at most: are the topics full?")
    milliseconds = sum(it.durationMs["triggerExecution"] for it in batches)
    rows_per_second: float = sum(it.numInputRows for it in batches) / milliseconds * 1000
    return rows_per_second


def _into_sink(writer: Any, query: Query, directory: str) -> Any:
    """Nowhere, but for q10, which is about files."""
    if query.name != "q10":
        return writer.format("noop")
    return writer.format("parquet").partitionBy("dt", "hm").option("path", f"{directory}/files")


def keep(part: str, figures: Mapping[str, Any]) -> None:
    """Lay new figures over those of earlier runs, so that a long run may be cut in pieces."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept.setdefault(part, {}).update(figures)
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
