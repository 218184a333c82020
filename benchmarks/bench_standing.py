"""Standing queries: how many events per second are matched with how many stored queries.

The mix of queries: 40 % `text has w1 and w2 and not w3`, 40 % `auction = a AND price > p`, 15 %
`channel = c AND price BETWEEN p AND 1.1 p`, 5 % `price > p`. Events have 20 words, whose
frequencies follow Zipf's law, and three fields, as JSON in a topic of two partitions. With 10,000
queries, an event matches 4 of them, with 100,000 it matches 39.

    index    the index alone, on one core, by CPU time: fields, texts, and both; beside Lucene
             Monitor with the same queries, which must have the same matches
    spark    the steady state of a stream: read, decoded, matched and thrown away, `local[2]`

Each query on Spark has eight micro-batches, and the last four of them count: in the first ones,
workers start and load the queries. The first query of a session is left out, because the JVM
compiles its code meanwhile. The bar is in events per second by wall time: run it on an idle
machine. `CPU` is the CPU time of everything, with the broker, for the same batches. `new query` is
the time from the acknowledgement of a query, while a stream runs, until an event that was produced
after it and that only this query matches has reached the sink.

`--queries index` or `--queries spark` runs one part.
"""

from __future__ import annotations

import json
import math
import queue
import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tests.peers.lucene import Monitor, running_monitor

from benchmarks.measurement import Measurement
from benchmarks.spark import (
    QUERY_SECONDS_MAX,
    QUERY_SETTINGS,
    WARM_UP_ROUNDS,
    cpu_seconds,
    fill,
    into_noop,
    running_query,
    spark_session,
    wait_until,
    with_settings,
)
from benchmarks.targets import Scale, Target, create_topic
from millstream.pipelines.standing import match_queries
from millstream.pipelines.standing.schemas import parse_schema
from millstream.pipelines.standing.stored import QueryRecord, StoredQueries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "auction bigint, price double, channel int, text string, at timestamp"
EVENTS = 400_000
DISTINCT_EVENTS = 40_000
BATCHES = 8  # of a query on Spark
BATCHES_LEFT_OUT = 4
PEER_EVENTS = 2_000  # Lucene Monitor has a thousandth of our speed with some queries
NEW_QUERIES = 10
BARS = {10_000: 50_000.0, 100_000: 20_000.0}  # events per second by the number of queries
WORDS = 50_000
KINDS = ("fields", "texts", "both")
BAR = "bar"
LUCENE = "lucene"


class Stored(NamedTuple):
    """A query in our language, and as clauses of Lucene's."""

    where: str
    clauses: list[dict[str, Any]]


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    parts = scale.queries or ("index", "spark")
    if "index" in parts:
        for count in BARS:
            for kind in KINDS:
                yield _index(scale.of(count), kind, scale)
    if "spark" in parts:
        with spark_session() as spark:
            for count, bar in BARS.items():
                yield from _on_spark(spark, targets[0], scale.of(count), bar, scale)


def stored_queries(count: int, kind: str = "both") -> list[Stored]:
    """The queries of a mix of `count`: only those on fields, only those on texts, or both."""
    chance = np.random.default_rng(count)
    text_count, value_count, range_count = (int(count * it) for it in (0.4, 0.4, 0.15))
    words = [chance.integers(*it, text_count) for it in ((50, 5_000), (50, 20_000), (0, 50))]
    auctions, floors = chance.integers(0, 10_000, value_count), _prices(chance, value_count)
    channels, lows = chance.integers(0, 100, range_count), _prices(chance, range_count)
    rest = _prices(chance, count - text_count - value_count - range_count) * 200
    texts = [_on_words(*(f"w{it}" for it in three)) for three in zip(*words, strict=True)]
    fields = [
        *(
            Stored(f"auction = {a} AND price > {p}", [_term("auction", a), _above(p)])
            for a, p in zip(auctions, floors, strict=True)
        ),
        *(
            Stored(
                f"channel = {c} AND price BETWEEN {p} AND {p * 1.1:.2f}",
                [_term("channel", c), _between(p, float(f"{p * 1.1:.2f}"))],
            )
            for c, p in zip(channels, lows, strict=True)
        ),
        *(Stored(f"price > {p:.2f}", [_above(float(f"{p:.2f}"))]) for p in rest),
    ]
    return {"fields": fields, "texts": texts, "both": [*texts, *fields]}[kind]


def _on_words(first: str, second: str, third: str) -> Stored:
    clauses = [_term("text", it) for it in (first, second)]
    clauses.append(_term("text", third) | {"occur": "not"})
    return Stored(f"matches(text, '{first} AND {second} NOT {third}')", clauses)


def _term(field: str, value: object) -> dict[str, Any]:
    return {"occur": "must", "field": field, "term": str(value)}


def _between(low: float, high: float | None) -> dict[str, Any]:
    return {"occur": "must", "field": "price", "low": low, "high": high}


def _above(low: float) -> dict[str, Any]:
    return _between(math.nextafter(low, math.inf), None)


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
    queries = stored_queries(count, kind)
    figure = Measurement(f"index, {kind} of {count:,} queries, one core", "events/s", peer=LUCENE)
    started = time.process_time()
    index = _loaded(queries)
    loaded = time.process_time() - started
    rows = events(scale.of(DISTINCT_EVENTS))
    batches = _batches(rows)
    peer_rows = [_without_time(it) for it in rows[: scale.of(PEER_EVENTS)]]
    clauses = {f"q{at}": it.clauses for at, it in enumerate(queries)}
    hits = 0
    with running_monitor(clauses, peer_rows) as monitor:
        _compare(index, monitor, rows[: len(peer_rows)])
        for number in range(scale.rounds + WARM_UP_ROUNDS):
            started = time.process_time()
            hits = sum(len(index.match(it, None).rows) for it in batches)
            ours, theirs = time.process_time() - started, monitor.match()
            if number >= WARM_UP_ROUNDS:
                figure.add("millstream", len(rows) / ours)
                figure.add(LUCENE, len(peer_rows) / theirs)
    figure.notes["millstream"] = f"{hits / len(rows):.1f} hits/event, loaded in {loaded:.1f} s"
    return figure


def _loaded(queries: Sequence[Stored]) -> StoredQueries:
    index = StoredQueries(parse_schema(SCHEMA))
    values = [json.dumps({"where": it.where}).encode() for it in queries]
    records = [QueryRecord(at, 0, b"q%d" % at, it) for at, it in enumerate(values)]
    assert not index.advance(records, len(records))
    index.compile()
    return index


def _batches(rows: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
    untimed = [it | {"at": None} for it in rows]
    return pa.Table.from_pylist(untimed, parse_schema(SCHEMA)).to_batches(10_000)


def _without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "at"}


def _compare(index: StoredQueries, monitor: Monitor, rows: Sequence[dict[str, Any]]) -> None:
    """Raises `AssertionError` unless the same queries match each event."""
    mine: list[set[str]] = [set() for _ in rows]
    (batch,) = _batches(rows)
    found = index.match(batch, None)
    for row, query_id in zip(found.rows, found.columns["_query"].to_pylist(), strict=True):
        mine[row].add(query_id)
    assert mine == monitor.show(), "Lucene Monitor has other matches"


def _on_spark(
    spark: SparkSession, target: Target, count: int, bar: float, scale: Scale
) -> Iterator[Measurement]:
    searches, offers = (create_topic(target, partitions=it) for it in (1, 2))
    values = [json.dumps({"where": it.where}).encode() for it in stored_queries(count)]
    fill(target, searches, values, count, partitions=1)
    distinct = [json.dumps(it).encode() for it in events(scale.of(DISTINCT_EVENTS))]
    total = scale.of(EVENTS)
    fill(target, offers, distinct, total, partitions=2)
    wall = Measurement(f"Spark, {count:,} queries", "events/s", bar=1.0, aim=2.0, peer=BAR)
    wall.add(BAR, bar)
    cpu = Measurement(f"Spark, {count:,} queries, CPU", "us/event", "lower is better")
    for number in range(scale.rounds + 1):
        rate, cost = _run_query(spark, target, searches, offers, total)
        if number:
            wall.add("millstream", rate)
            cpu.add("millstream", cost * 1e6)
    yield wall
    yield cpu
    new = Measurement(f"Spark, {count:,} queries, new query", "ms", "lower is better")
    for milliseconds in _effect_ms(spark, target, searches, offers):
        new.add("millstream", milliseconds)
    new.notes["millstream"] = f"median {statistics.median(new.samples['millstream']):.0f} ms"
    yield new


def _matched(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    reader = spark.readStream.format("millstream").options(**options)
    frame = reader.schema(f"{SCHEMA}, _queries bigint").load()
    return frame.transform(match_queries, options["queriesTopic"], time=None, options=options)


def _options(target: Target, searches: str, offers: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": target.bootstrap,
        "subscribe": offers,
        "valueFormat": "json",
        "queriesTopic": searches,
    }


def _run_query(
    spark: SparkSession, target: Target, searches: str, offers: str, total: int
) -> tuple[float, float]:
    """Events per second, and CPU seconds per event, of the last batches."""
    size = max(total // BATCHES, 1)
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(size)}
    matched = _matched(spark, _options(target, searches, offers) | limits)
    begun: list[tuple[float, float]] = []

    def sink(rows: Any, number: int) -> None:
        if number == BATCHES_LEFT_OUT:
            begun.append((time.perf_counter(), cpu_seconds()))
        into_noop(rows)

    writer = matched.writeStream.queryName(uuid.uuid4().hex).foreachBatch(sink)
    with (
        with_settings(spark, QUERY_SETTINGS),
        running_query(writer.trigger(availableNow=True)) as query,
    ):
        assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
    counted = total - BATCHES_LEFT_OUT * size
    elapsed, used = time.perf_counter() - begun[0][0], cpu_seconds() - begun[0][1]
    return counted / elapsed, used / counted


def _effect_ms(spark: SparkSession, target: Target, searches: str, offers: str) -> Iterator[float]:
    """For queries that are added one after another, the time until each matches an event."""
    from confluent_kafka import Producer

    options = _options(target, searches, offers) | {"startingOffsets": "latest"}
    matched = _matched(spark, options).select("_query")
    seen: queue.Queue[str] = queue.Queue()

    def sink(rows: Any, _number: int) -> None:
        for it in rows.collect():
            seen.put(it["_query"])

    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0, "acks": "all"})
    writer = matched.writeStream.queryName(uuid.uuid4().hex).foreachBatch(sink)
    with with_settings(spark, QUERY_SETTINGS), running_query(writer) as query:
        wait_until(query, lambda: query.lastProgress is not None, QUERY_SECONDS_MAX)
        for number in range(NEW_QUERIES + 1):
            name, auction = f"new-{number}", -1 - number
            producer.produce(searches, json.dumps({"where": f"auction = {auction}"}), key=name)
            producer.flush()
            started = time.perf_counter()
            producer.produce(offers, json.dumps({"auction": auction}), partition=0)
            producer.flush()
            assert seen.get(timeout=QUERY_SECONDS_MAX) == name
            if number:  # workers load the queries for the first event
                yield (time.perf_counter() - started) * 1000
