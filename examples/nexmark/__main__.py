"""One question, asked of a stream, and the answer held against DuckDB's.

    python -m examples.nexmark q9             of 20,000 events
    python -m examples.nexmark q5 200000

Starts a broker and Spark, writes the events to topics, runs the query over them as a stream in a
few micro-batches, and compares.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from itertools import islice
from typing import Any

import pyarrow as pa
from examples.nexmark.generator import TIME, Generator, Settings, Tables, an_hour_later
from examples.nexmark.queries import QUERIES, Query
from examples.nexmark.records import SPARK_SCHEMAS, TOPICS, create_topics, produce
from pyspark.sql import DataFrame, SparkSession

from examples.nexmark import oracle
from millstream import Broker
from millstream.pipelines import spark_settings
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER

ROWS_SHOWN = 5
BATCHES = 4


def main(name: str, events: int = 20_000) -> None:
    query = QUERIES[name]
    generator = Generator(Settings(events, events_per_second=max(events // 100, 1)))
    tables = generator.tables()
    with Broker.start(in_process=False) as broker:
        create_topics(broker.bootstrap_servers)
        produce(generator.batches(), broker.bootstrap_servers)
        if query.waits:
            produce([an_hour_later(tables)], broker.bootstrap_servers)
        found = run(query, tables, broker.bootstrap_servers)
    expected = Counter(rows_of(oracle.answer(name, tables)))
    for row in islice(found, ROWS_SHOWN):
        print(*row, sep=" | ")
    print(f"{found.total():,} rows; DuckDB says {'the same' if found == expected else 'otherwise'}")
    assert found == expected


def run(query: Query, tables: Tables, servers: str) -> Counter[tuple[Any, ...]]:
    spark = session()
    answer = query.ask(streams(spark, tables, servers, query.clock))
    rows: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, _number: int) -> None:
        rows.extend(rows_of(batch.toArrow()))

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = answer.writeStream.foreachBatch(keep).outputMode(query.output_mode)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
    spark.stop()
    return query.settle(answer.columns, rows)


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config(STORE_PROVIDER, ROCKSDB)
    for name, value in spark_settings("local[2]").items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def streams(spark: SparkSession, tables: Tables, servers: str, clock: str) -> dict[str, DataFrame]:
    """The topics, each in so many micro-batches, and the table of q13."""
    found = {"side_input": spark.createDataFrame(oracle.side_input())}
    for topic in TOPICS:
        options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "valueFormat": "json",
            "maxOffsetsPerTrigger": str(-(-getattr(tables, topic).num_rows // BATCHES)),
        }
        schema = f"{SPARK_SCHEMAS[topic]}, _timestamp timestamp"
        events = spark.readStream.format("millstream").schema(schema).options(**options).load()
        with_arrival = events.withColumnRenamed("_timestamp", "arrival")
        found[topic] = with_arrival.withWatermark(clock, "4 seconds")
    return found


def rows_of(answer: pa.Table) -> list[tuple[Any, ...]]:
    """With times as texts, since those of Python depend on where they are read."""
    columns = (it.cast(pa.string()) if it.type == TIME else it for it in answer.itercolumns())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
