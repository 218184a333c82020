"""Patterns on Spark with durable state, in rows per CPU second of all processes, beside Flink.

    p1        A B+ C within a minute: u < 10, 10 <= u < 60, u >= 60
    p2        A B within a minute: u < 3, u >= 95
    v         S D+ U within a minute: u falls, and rises
    tail      A B+ C within a minute: u < 10, any, never; attempts end with their minute

Beside PyFlink's MATCH_RECOGNIZE and Flink CEP in Java (`pattern_peers.py`), rows are a millisecond
apart, of 1,000 keys; the three run in turn, and must find the same matches. Flink has its state on
the heap, in one slot, where it needs least CPU time, and its rows from a generator; we read Parquet
files, each a micro-batch, with `local[2]` and state in RocksDB.

The other figures compare us with ourselves: rows are 25 microseconds apart, of 1,000, 100,000 and
1,000,000 keys, so a micro-batch is 12 seconds, and attempts of `tail` end from the sixth batch on.

Batches have 500,000 rows, as in Nexmark. The first two of a query, in which workers start and the
just-in-time compiler works, are left out. What is measured ends with the last batch: each batch
stores its rows and matches those of the batch before, up to the watermark.

`--queries p1,v` measures only these, `--alone` without Flink.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measurement import Measurement
from benchmarks.nexmark import STATE_SETTINGS
from benchmarks.pattern_peers import CEP, SQL, Cost, Found, Peer, cpu_seconds_of, running_peers
from benchmarks.spark import (
    OURS,
    QUERY_SECONDS_MAX,
    spark_session,
    with_settings,
)
from benchmarks.targets import Scale, Target
from millstream.pipelines.patterns import Pattern, match

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 500_000  # of a batch
BATCHES, WARM_UP = 8, 2
LOOK_SECONDS = 0.01
LOOKS_PER_QUESTION = 100
KEYS = (1_000, 100_000, 1_000_000)
PEER_US, DENSE_US = 1_000, 25  # between rows
BARS = {SQL: 2.0, CEP: 1.0}
FLAT = 0.5  # of the rate with the fewest keys, and of that without a tail
SCHEMA = "k long, at timestamp, u long"
EVERY: dict[str, Any] = {"key": "k", "time": "at", "within": "1 minute"}
MEASURES = {"n": "count(*)", "began": "first(at)", "ended": "last(at)"}
PATTERNS = {
    "p1": match(
        "A B+ C",
        where={"A": "u < 10", "B": "u >= 10 and u < 60", "C": "u >= 60"},
        **EVERY,
        **MEASURES,
    ),
    "p2": match("A B", where={"A": "u < 3", "B": "u >= 95"}, **EVERY, **MEASURES),
    "v": match(
        "S D+ U",
        where={"D": "u < prev(u)", "U": "u > prev(u)"},
        **EVERY,
        **MEASURES,
    ),
    "tail": match(
        "A B+ C", where={"A": "u < 10", "B": "u < 100", "C": "u > 100"}, **EVERY, **MEASURES
    ),
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    """No broker takes part: those that run are not counted."""
    brokers = {it.process.pid for it in targets if it.process is not None}
    chosen = [name for name in PATTERNS if not scale.queries or name in scale.queries]
    with spark_session() as spark, with_settings(spark, STATE_SETTINGS):
        if {it.name for it in targets} != {OURS}:
            with running_peers() as peers:
                others = brokers | {it.pid for it in peers.values()}
                for name in chosen:
                    if name != "tail":
                        yield from _beside_peers(spark, name, peers, others, scale)
        yield from _flatness(spark, chosen, brokers, scale)


def _beside_peers(
    spark: SparkSession,
    name: str,
    peers: Mapping[str, Peer],
    others: Collection[int],
    scale: Scale,
) -> Iterator[Measurement]:
    """Rounds of all in turn, after a warm-up."""
    rows = scale.of(ROWS)
    until_ms = (BATCHES - 1) * rows - 2_000  # what all have decided with the last batch
    costs: dict[str, list[Cost]] = {}
    for number in range(scale.rounds + 1):
        taken = {OURS: _measure(spark, PATTERNS[name], KEYS[0], rows, PEER_US, until_ms, others)}
        for peer, it in peers.items():
            taken[peer] = it.measure(name, KEYS[0], BATCHES * rows, until_ms)
        if len(found := {it.found for it in taken.values()}) > 1:
            raise AssertionError(f"other matches: {taken}")
        for engine, cost in taken.items():
            _show(f"{name}, round {number}: {engine}", cost)
            if number:
                costs.setdefault(engine, []).append(cost)
    matches = found.pop().matches
    for kind, unit in (("CPU", "rows/s of a core"), ("wall", "rows/s")):
        for peer in peers:
            title = f"pattern {name} beside {peer}, {kind}"
            bar = BARS[peer] if kind == "CPU" else None
            figure = Measurement(title, unit, peer=peer, bar=bar)
            figure.notes = {OURS: f"{matches:,} matches, the same"}
            for engine in (OURS, peer):
                for cost in costs[engine]:
                    seconds = cost.cpu_seconds if kind == "CPU" else cost.wall_seconds
                    figure.add(engine, cost.rows / seconds)
            yield figure


def _flatness(
    spark: SparkSession, chosen: Sequence[str], others: Collection[int], scale: Scale
) -> Iterator[Measurement]:
    """Patterns by the number of keys, and attempts that do not end, each compared with few keys."""
    rates: dict[tuple[str, int], list[float]] = {}
    cases = [(name, keys) for keys in KEYS for name in chosen if name != "tail" or keys == KEYS[0]]
    if scale.is_quick:
        cases = [it for it in cases if it in (("p1", KEYS[0]), ("tail", KEYS[0]))]
    for number in range(scale.rounds):
        for name, keys in cases:
            cost = _measure(spark, PATTERNS[name], keys, scale.of(ROWS), DENSE_US, 2**62, others)
            _show(f"{name}, {keys:,} keys, round {number}", cost)
            rates.setdefault((name, keys), []).append(cost.rows / cost.cpu_seconds)
    for (name, keys), samples in rates.items():
        few = rates.get(("p1" if name == "tail" else name, KEYS[0]))
        is_compared = few is not None and (name == "tail" or keys > KEYS[0])
        figure = Measurement(f"pattern {name}, {keys:,} keys, CPU", "rows/s of a core")
        figure.peer, figure.bar = "few keys, no tail", FLAT if is_compared else None
        figure.samples = {OURS: samples}
        if few is not None and is_compared:
            figure.samples[figure.peer] = few
        yield figure


def events(first: int, count: int, keys: int, row_us: int) -> pa.Table:
    """Rows by number: the values follow from it without a generator of random numbers."""
    number = np.arange(first, first + count)
    u = ((number % 1_000_003) ** 2 * 31 + number * 17) % 100_003 % 100
    at = pa.array(number * row_us).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"k": number * 7919 % keys, "at": at, "u": u})


def _measure(
    spark: SparkSession,
    pattern: Pattern,
    keys: int,
    rows: int,
    row_us: int,
    until_ms: int,
    others: Collection[int],
) -> Cost:
    """The batches after the first ones; `others` are processes that do not count."""
    from pyspark.sql.functions import coalesce, count, lit, sum, unix_millis

    times = [coalesce(sum(unix_millis(it)), lit(0)) for it in ("began", "ended")]
    sums = [count("*"), coalesce(sum("n"), lit(0)), *times]
    named = [it.alias(name) for it, name in zip(sums, Found._fields, strict=True)]
    with tempfile.TemporaryDirectory(prefix="bench-patterns-") as directory:
        files, checkpoint = Path(directory) / "rows", Path(directory) / "checkpoint"
        files.mkdir()
        for number in range(BATCHES):
            path = files / f"{number:03}.parquet"
            batch = events(number * rows, rows, keys, row_us)
            pq.write_table(batch, path, row_group_size=rows // 2)
            os.utime(path, (number, number))  # Spark takes the oldest first
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(files)).withWatermark("at", "1 second").transform(pattern)
        frame = frame.where(unix_millis("ended") < until_ms).observe("found", *named)
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            before = _used_when_committed(query, checkpoint, WARM_UP - 1, others)
            after = _used_when_committed(query, checkpoint, BATCHES - 1, others)
            assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
        finally:
            query.stop()
        found = [[*it.observedMetrics["found"]] for it in query.recentProgress]
    cpu_seconds, wall_seconds = np.subtract(after, before)
    measured = (BATCHES - WARM_UP) * rows
    return Cost(measured, cpu_seconds, wall_seconds, Found(*map(int, np.array(found).sum(axis=0))))


def _used_when_committed(
    query: StreamingQuery, checkpoint: Path, batch: int, others: Collection[int]
) -> tuple[float, float]:
    """CPU time that is used, and the time, at the end of a batch. The file tells: a listener in
    Python would take a tenth of the CPU time that is measured."""
    committed = checkpoint / "commits" / str(batch)
    deadline = time.monotonic() + QUERY_SECONDS_MAX
    for number in itertools.count():
        if committed.exists():
            break
        if number % LOOKS_PER_QUESTION == 0 and (failure := query.exception()) is not None:
            raise failure
        assert time.monotonic() < deadline, "the query does not end"
        time.sleep(LOOK_SECONDS)
    return cpu_seconds_of(os.getpid(), others), time.perf_counter()


def _show(what: str, cost: Cost) -> None:
    rate, wall = cost.rows / cost.cpu_seconds, cost.rows / cost.wall_seconds
    text = f"{what}: {rate:,.0f} rows/s of a core, {wall:,.0f} rows/s; {cost.found}"
    print(text, file=sys.stderr, flush=True)
