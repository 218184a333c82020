"""What Spark answers, over tables and over streams, equals what DuckDB answers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples.nexmark.generator import TIME, Generator, Tables, an_hour_later
from examples.nexmark.queries import QUERIES, Query
from pyspark.sql import DataFrame, SparkSession

from examples.nexmark import oracle
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from tests.examples.nexmark.test_oracle import SETTINGS, coarse

DELAY = f"{SETTINGS.delay_max_ms + 1} milliseconds"
BATCHES = 4
ALWAYS_RUN = ("q5",)
BOTH_WAYS = [
    (f"{name}-native", query.plain)
    for name, query in QUERIES.items()
    if query.plain not in (query, None)
]
QUERY_PARAMS = [
    pytest.param(query, id=name, marks=[] if name in ALWAYS_RUN else [pytest.mark.slow])
    for name, query in [*QUERIES.items(), *BOTH_WAYS]
]


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Generator(SETTINGS).tables()


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """With RocksDB, in which the library's state is kept."""
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield spark
    spark.conf.unset(STORE_PROVIDER)


def rows_of(answer: pa.Table) -> list[tuple[Any, ...]]:
    """With times as microseconds, since those of Python depend on where they are read."""
    columns = (it.cast(pa.int64()) if it.type == TIME else it for it in answer.itercolumns())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_there_is_a_function_for_every_query() -> None:
    assert tuple(QUERIES) == oracle.QUERIES
    assert [name for name, _ in BOTH_WAYS] == ["q20-native"]


@pytest.mark.parametrize("shape", ["as generated", "coarse"])
@pytest.mark.parametrize("query", QUERY_PARAMS)
def test_answer_over_tables_is_that_of_duckdb(
    session: SparkSession, tables: Tables, query: Query, shape: str
) -> None:
    data = tables if shape == "as generated" else coarse(tables)
    named = data._asdict() | {"side_input": oracle.side_input()}
    found = query.ask({it: session.createDataFrame(named[it]) for it in query.tables}).toArrow()
    expected = oracle.answer(query.name, data)
    shown = found.drop_columns("_weight") if query.answer == "changes" else found
    assert shown.column_names == expected.column_names
    assert [it.type for it in shown.schema] == [it.type for it in expected.schema]
    assert query.settle(found.column_names, rows_of(found)) == Counter(rows_of(expected))


@pytest.fixture(scope="module")
def folders(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events in files as they arrive, one of each kind for a batch. In `closed` one more of
    each comes an hour later, which no answer shows."""
    root = tmp_path_factory.mktemp("nexmark")
    batches = list(Generator(SETTINGS).batches(SETTINGS.events // BATCHES + 20))
    for place, batch in enumerate([*batches, an_hour_later(tables)]):
        for kind, rows in batch._asdict().items():
            for folder in ("open", "closed")[place == len(batches) :]:
                path = root / folder / kind / f"{place}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table(rows), path)
                os.utime(path, (place, place))  # Spark takes the oldest first
    return root


def streams(spark: SparkSession, folder: Path, query: Query) -> dict[str, DataFrame]:
    """Each kind as a stream that gives a file to each batch."""
    found = {"side_input": spark.createDataFrame(oracle.side_input())}
    for kind in set(query.tables) & set(Tables._fields):
        schema = spark.read.parquet(str(folder / kind)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        found[kind] = reader.parquet(str(folder / kind)).withWatermark(query.clock, DELAY)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERY_PARAMS)
def test_answer_over_streams_is_that_of_duckdb(
    session: SparkSession, tables: Tables, folders: Path, tmp_path: Path, query: Query
) -> None:
    expected = oracle.answer(query.name, tables)
    rows: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, _number: int) -> None:
        rows.extend(rows_of(batch.toArrow()))

    answer = query.ask(streams(session, folders / ("closed" if query.waits else "open"), query))
    writer = answer.writeStream.foreachBatch(keep)
    writer = writer.outputMode(query.output_mode).trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(tmp_path)).start()
    running.awaitTermination()
    assert query.settle(answer.columns, rows) == Counter(rows_of(expected))
    progresses = running.recentProgress
    assert sum(it.numInputRows > 0 for it in progresses) >= BATCHES
    operators = [it for progress in progresses for it in progress.stateOperators]
    assert sum(it.numRowsDroppedByWatermark for it in operators) == 0
