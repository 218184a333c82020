"""Micro-batches of 100,000 rows into SQLite and PostgreSQL, beside the way one would write by hand.

`store.write` from a cached DataFrame of five columns, `local[2]`, commits flushed to disk, keys in
random order and half of them known already. By hand: `toPandas`, then the driver's `executemany` of
the same statement in one transaction, which keeps no progress. The bar of the sinks is absolute:
200,000 rows a second.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.cache import PeerMissing
from tests.peers.postgres import start_postgres

from benchmarks.measurement import Measurement
from benchmarks.spark import seconds, spark_session
from benchmarks.targets import Scale, Target
from millstream.pipelines.stores import Mode, TableSpec, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 100_000
BAR_ROWS_PER_SECOND = 200_000
HAND = "by hand"
COLUMNS = ("id", "user", "amount", "at", "n")
_DDL = 'id bigint{key}, "user" text, amount double precision, at {timestamp}, n integer'
_UPSERT = (
    ' ON CONFLICT (id) DO UPDATE SET "user" = excluded."user", amount = excluded.amount, '
    "at = excluded.at, n = excluded.n"
)


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    directory = Path(tempfile.mkdtemp(prefix="millstream-stores-"))
    try:
        with spark_session() as spark:
            batches = make_batches(spark, scale.of(ROWS_PER_BATCH), scale.rounds + 1)
            yield from _measure_all("SQLite", f"sqlite:///{directory}/store.db", batches)
            try:
                server = start_postgres()
            except PeerMissing as missing:
                print(f"PostgreSQL is left out: {missing}")
                return
            try:
                yield from _measure_all("PostgreSQL", server.url, batches)
            finally:
                server.remove()
    finally:
        shutil.rmtree(directory)


def make_batches(spark: SparkSession, row_count: int, count: int) -> list[DataFrame]:
    """Half of the keys of each were in the one before."""
    batches = []
    for number in range(count):
        begin = number * row_count // 2
        batch = spark.range(begin, begin + row_count, 1, 2).selectExpr(
            "id",
            "concat('user-', id % 100000) AS user",
            "rand(1) AS amount",
            "timestamp_micros(1700000000000000 + id * 1000) AS at",
            "CAST(id % 10 AS int) AS n",
        )
        batch = batch.repartition(2, "user").sortWithinPartitions("amount").cache()
        batch.count()
        batches.append(batch)
    return batches


def _measure_all(name: str, url: str, batches: list[DataFrame]) -> Iterator[Measurement]:
    modes: tuple[Mode, ...] = ("append", "upsert")
    for mode in modes:
        measurement = Measurement(f"{name}, {mode}", "rows/s", peer=HAND)
        write_by_hand = by_hand(url, mode)
        with open_store(url) as store:
            table = TableSpec(mode, ("id",) if mode == "upsert" else (), mode)
            for number, batch in enumerate(batches):
                rows = batch.count()

                def write(batch: DataFrame = batch, number: int = number) -> None:
                    store.write(batch, number, mode, table)  # noqa: B023  called at once

                ours, theirs = seconds(write), seconds(lambda: write_by_hand(batch))  # noqa: B023
                if number > 0:  # the first batch warms both up
                    measurement.add("millstream", rows / ours)
                    measurement.add(HAND, rows / theirs)
        reached = (measurement.best("millstream") or 0) >= BAR_ROWS_PER_SECOND
        verdict = "reached" if reached else "missed"
        measurement.notes["millstream"] = f"bar of {BAR_ROWS_PER_SECOND:,} rows/s {verdict}"
        yield measurement


def by_hand(url: str, mode: str) -> Callable[[DataFrame], None]:
    """A function that writes a batch the way a foreachBatch of a few lines does."""
    sqlite = url.startswith("sqlite")
    key = " PRIMARY KEY" if mode == "upsert" else ""
    ddl = _DDL.format(key=key, timestamp="text" if sqlite else "timestamptz")
    connection = _connect(url)
    connection.execute(f"CREATE TABLE hand_{mode} ({ddl})")
    connection.commit()
    places = ", ".join("?" if sqlite else "%s" for _ in COLUMNS)
    statement = f"INSERT INTO hand_{mode} VALUES ({places})" + (_UPSERT if key else "")

    def write(batch: DataFrame) -> None:
        frame = batch.toPandas()
        if sqlite:
            frame["at"] = frame["at"].astype(str)
        connection.cursor().executemany(statement, list(frame.itertuples(index=False, name=None)))
        connection.commit()

    return write


def _connect(url: str) -> Any:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///") + ".hand")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    import psycopg

    return psycopg.connect(url)
