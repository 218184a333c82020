"""Standing queries: how many events per second are matched with how many stored queries.

The mix of queries: 40 % `text has w1 and w2 and not w3`, 40 % `auction = a AND price > p`, 15 %
`channel = c AND price BETWEEN p AND q`, 5 % `price > p`. Events have 20 words and three fields, as
JSON in a topic of two partitions.

`index` is the index alone, on one core, by CPU time. `Spark` reads, decodes, matches and throws the
rows away, `local[2]`, in four micro-batches; the first batch of a query, in which
workers start and load the queries, is left out. The bar is in events per second, by wall time: run
it on an idle machine. `CPU` is the CPU time of everything but the broker for the same batches.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.measurement import Measurement
from benchmarks.spark import (
    QUERY_SECONDS_MAX,
    QUERY_SETTINGS,
    cpu_seconds,
    fill,
    running_query,
    spark_session,
    with_settings,
)
from benchmarks.targets import Scale, Target, create_topic
from millstream.pipelines.standing import match_queries
from millstream.pipelines.standing.kinds import parse_schema
from millstream.pipelines.standing.stored import QueryRecord, StoredQueries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "auction bigint, price bigint, channel string, text string, at timestamp"
EVENTS = 200_000
DISTINCT_EVENTS = 40_000
BARS = {10_000: 50_000.0, 100_000: 20_000.0}  # events per second by the number of queries
WORDS = 20_000
BAR = "bar"


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for count in BARS:
        yield _index(scale.of(count), scale)
    with spark_session() as spark:
        for count, bar in BARS.items():
            yield from _on_spark(spark, targets[0], scale.of(count), bar, scale)


def query_texts(count: int) -> Iterator[str]:
    chance = random.Random(count)
    span = max(1_000_000 // count, 2)  # so that the hits of these do not grow with the queries
    for number in range(count):
        kind = number % 20
        if kind < 8:
            rare = f"w{chance.randrange(WORDS)}"
            yield f"matches(text, '{rare} AND {_word(chance)} NOT {_word(chance)}')"
        elif kind < 16:
            yield f"auction = {chance.randrange(20_000)} AND price > {chance.randrange(10_000)}"
        elif kind < 19:
            low, high = chance.randrange(5_000), chance.randrange(5_000, 10_000)
            channel = chance.randrange(10_000)
            yield f"channel = 'c{channel}' AND price BETWEEN {low} AND {high}"
        else:
            yield f"price > {10_000 - 1 - chance.randrange(span)}"


def _word(chance: random.Random) -> str:
    """Few words are frequent."""
    return f"w{min(int(chance.paretovariate(0.6) * 10), WORDS - 1)}"


def events(count: int) -> list[dict[str, Any]]:
    chance = random.Random(count)
    return [
        {
            "auction": chance.randrange(20_000),
            "price": chance.randrange(10_000),
            "channel": f"c{chance.randrange(10_000)}",
            "text": " ".join(_word(chance) for _ in range(20)),
            "at": "2026-01-01T00:00:00Z",
        }
        for _ in range(count)
    ]


def _index(count: int, scale: Scale) -> Measurement:
    figure = Measurement(f"index, {count:,} queries, one core", "events/s")
    schema = parse_schema(SCHEMA)
    index = StoredQueries(schema)
    started = time.process_time()
    values = [json.dumps({"where": it}).encode() for it in query_texts(count)]
    index.advance([QueryRecord(at, 0, b"q%d" % at, it) for at, it in enumerate(values)], count)
    loaded = time.process_time() - started
    rows = [it | {"at": None} for it in events(scale.of(DISTINCT_EVENTS))]
    batches = pa.Table.from_pylist(rows, schema).to_batches(10_000)
    hits = 0
    for number in range(scale.rounds + 1):
        started = time.process_time()
        hits = sum(len(index.match(it, np.zeros(it.num_rows, np.int64)).rows) for it in batches)
        if number:
            figure.add("millstream", len(rows) / (time.process_time() - started))
    figure.notes["millstream"] = f"{hits / len(rows):.1f} hits/event, loaded in {loaded:.1f} s"
    return figure


def _on_spark(
    spark: SparkSession, target: Target, count: int, bar: float, scale: Scale
) -> Iterator[Measurement]:
    searches, offers = (create_topic(target, partitions=it) for it in (1, 2))
    values = [json.dumps({"where": it}).encode() for it in query_texts(count)]
    fill(target, searches, values, count, partitions=1)
    distinct = [json.dumps(it).encode() for it in events(scale.of(DISTINCT_EVENTS))]
    total = scale.of(EVENTS)
    fill(target, offers, distinct, total, partitions=2)
    wall = Measurement(f"Spark, {count:,} queries", "events/s", bar=1.0, aim=2.0, peer=BAR)
    wall.add(BAR, bar)
    cpu = Measurement(f"Spark, {count:,} queries, CPU", "us/event", "lower is better")
    for _ in range(scale.rounds):
        rate, cost = _run_query(spark, target, searches, offers, total)
        wall.add("millstream", rate)
        cpu.add("millstream", cost * 1e6)
    yield wall
    yield cpu


def _run_query(
    spark: SparkSession, target: Target, searches: str, offers: str, total: int
) -> tuple[float, float]:
    """Events per second, and CPU seconds per event, without the first batch."""
    options = {
        "kafka.bootstrap.servers": target.bootstrap,
        "subscribe": offers,
        "valueFormat": "json",
        "startingOffsets": "earliest",
        "queriesTopic": searches,
        "maxOffsetsPerTrigger": str(max(total // 4, 1)),
    }
    reader = spark.readStream.format("millstream").options(**options)
    frame = reader.schema(f"{SCHEMA}, _queries bigint").load()
    matched = frame.transform(match_queries, searches, time=None, options=options)
    begun: list[tuple[float, float]] = []

    def sink(rows: Any, number: int) -> None:
        if number == 1:
            begun.append((time.perf_counter(), cpu_seconds()))
        rows.write.format("noop").mode("overwrite").save()

    writer = matched.writeStream.queryName(uuid.uuid4().hex).foreachBatch(sink)
    with (
        with_settings(spark, QUERY_SETTINGS),
        running_query(writer.trigger(availableNow=True)) as query,
    ):
        assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
    counted = total - total // 4
    elapsed, used = time.perf_counter() - begun[0][0], cpu_seconds() - begun[0][1]
    return counted / elapsed, used / counted
