"""Standing queries: how many events per second are matched with how many stored queries.

The mix of queries: 40 % `text has w1 and w2 and not w3`, 40 % `auction = a AND price > p`, 15 %
`channel = c AND price BETWEEN p AND 1.1 p`, 5 % `price > p`. Events have 20 words, whose
frequencies follow Zipf's law, and three fields, as JSON in a topic of two partitions. With 10,000
queries, an event matches 3 of them, with 100,000 it matches 35.

`index` is the index alone, on one core, by CPU time: fields, texts, and both. `Spark` reads,
decodes, matches and throws the rows away, `local[2]`, in four micro-batches; the first batch of a
query, in which workers start and load the queries, is left out. The bar is in events per second,
by wall time: run it on an idle machine. `CPU` is the CPU time of everything, with the broker, for
the same batches.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
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
from millstream.pipelines.standing.schemas import parse_schema
from millstream.pipelines.standing.stored import QueryRecord, StoredQueries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "auction bigint, price double, channel int, text string, at timestamp"
EVENTS = 400_000
DISTINCT_EVENTS = 40_000
BARS = {10_000: 50_000.0, 100_000: 20_000.0}  # events per second by the number of queries
WORDS = 50_000
KINDS = ("fields", "texts", "both")
BAR = "bar"


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for count in BARS:
        for kind in KINDS:
            yield _index(scale.of(count), kind, scale)
    with spark_session() as spark:
        for count, bar in BARS.items():
            yield from _on_spark(spark, targets[0], scale.of(count), bar, scale)


def query_texts(count: int, kind: str = "both") -> list[str]:
    """The queries of a mix of `count`: only those on fields, only those on texts, or both."""
    chance = np.random.default_rng(count)
    text_count, value_count, range_count = (int(count * it) for it in (0.4, 0.4, 0.15))
    words = [chance.integers(*it, text_count) for it in ((50, 5_000), (50, 20_000), (0, 50))]
    texts = [
        f"matches(text, 'w{first} AND w{second} NOT w{third}')"
        for first, second, third in zip(*words, strict=True)
    ]
    auctions, floors = chance.integers(0, 10_000, value_count), _prices(chance, value_count)
    channels, lows = chance.integers(0, 100, range_count), _prices(chance, range_count)
    rest = _prices(chance, count - text_count - value_count - range_count) * 200
    fields = [
        *(f"auction = {a} AND price > {p}" for a, p in zip(auctions, floors, strict=True)),
        *(
            f"channel = {c} AND price BETWEEN {p} AND {p * 1.1:.2f}"
            for c, p in zip(channels, lows, strict=True)
        ),
        *(f"price > {p:.2f}" for p in rest),
    ]
    return {"fields": fields, "texts": texts, "both": [*texts, *fields]}[kind]


def _prices(chance: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    return np.round(np.exp(chance.normal(5, 1.5, count)), 2)


def events(count: int) -> list[dict[str, Any]]:
    chance = np.random.default_rng(count)
    shares = np.cumsum(1 / np.arange(1, WORDS + 1))
    words = np.searchsorted(shares, chance.random((count, 20)) * shares[-1])
    fields = chance.integers(0, 10_000, count), _prices(chance, count)
    channels = chance.integers(0, 100, count)
    return [
        {
            "auction": int(auction),
            "price": float(price),
            "channel": int(channel),
            "text": " ".join(f"w{it}" for it in mine),
            "at": "2026-01-01T00:00:00Z",
        }
        for auction, price, channel, mine in zip(*fields, channels, words, strict=True)
    ]


def _index(count: int, kind: str, scale: Scale) -> Measurement:
    texts = query_texts(count, kind)
    figure = Measurement(f"index, {kind} of {count:,} queries, one core", "events/s")
    schema = parse_schema(SCHEMA)
    index = StoredQueries(schema)
    started = time.process_time()
    values = [json.dumps({"where": it}).encode() for it in texts]
    records = [QueryRecord(at, 0, b"q%d" % at, it) for at, it in enumerate(values)]
    index.advance(records, len(records))
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
