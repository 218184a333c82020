"""What Spark answers by itself, over tables and over streams, equals what DuckDB answers."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples.nexmark.generator import SCHEMAS, TIME, Generator, Tables
from examples.nexmark.native import NATIVE
from pyspark.sql import DataFrame, SparkSession

from examples.nexmark import oracle
from tests.examples.nexmark.test_oracle import SETTINGS, coarse

pytestmark = pytest.mark.slow

DELAY = f"{SETTINGS.delay_max_ms} milliseconds"
UPDATED = {"q15", "q16", "q17", "q18", "q19"}
WINDOWED = {"q5", "q7", "q11", "q12"}  # these answer when a window is closed
AN_HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Generator(SETTINGS).tables()


def rows_of(answer: pa.Table) -> list[tuple[Any, ...]]:
    """With times as microseconds, since those of Python depend on where they are read."""
    columns = (it.cast(pa.int64()) if it.type == TIME else it for it in answer.itercolumns())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def ask(query: str, sources: dict[str, DataFrame]) -> DataFrame:
    function = NATIVE[query]
    return function(**{name: sources[name] for name in inspect.signature(function).parameters})


@pytest.fixture(scope="module", params=["as generated", "coarse"])
def data(request: pytest.FixtureRequest, tables: Tables) -> Tables:
    return tables if request.param == "as generated" else coarse(tables)


@pytest.fixture(scope="module")
def sources(spark: SparkSession, data: Tables) -> dict[str, DataFrame]:
    named = (*data._asdict().items(), ("side_input", oracle.side_input()))
    return {name: spark.createDataFrame(table) for name, table in named}


@pytest.mark.parametrize("query", NATIVE)
def test_spark_answers_over_tables_as_duckdb(
    data: Tables, sources: dict[str, DataFrame], query: str
) -> None:
    found = ask(query, sources).toArrow()
    expected = oracle.answer(query, data)
    assert found.column_names == expected.column_names
    assert [it.type for it in found.schema] == [it.type for it in expected.schema]
    assert Counter(rows_of(found)) == Counter(rows_of(expected))


@pytest.fixture(scope="module")
def folders(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events in files as they arrive, four of each kind; a last bid comes an hour later."""
    root = tmp_path_factory.mktemp("nexmark")
    for number, batch in enumerate(Generator(SETTINGS).batches(SETTINGS.events // 4 + 20)):
        for kind, rows in batch._asdict().items():
            (root / kind).mkdir(exist_ok=True)
            pq.write_table(pa.table(rows), root / kind / f"{number}.parquet")
    (root / "closed").mkdir()
    for file in (root / "bid").iterdir():
        (root / "closed" / file.name).hardlink_to(file)
    last = tables.bid.slice(tables.bid.num_rows - 1).to_pylist()[0]
    later = last["arrival"].timestamp() * 1_000_000 + AN_HOUR_US
    closing = {**last, "dateTime": int(later), "arrival": int(later)}
    pq.write_table(
        pa.Table.from_pylist([closing], schema=SCHEMAS[2]), root / "closed" / "later.parquet"
    )
    return root


def streams(spark: SparkSession, folders: Path, query: str) -> Iterator[tuple[str, DataFrame]]:
    """Each kind as a stream that gives a file to each batch."""
    clock = "arrival" if query == "q12" else "dateTime"
    for kind in Tables._fields:
        folder = "closed" if kind == "bid" and query in WINDOWED else kind
        schema = spark.read.parquet(str(folders / kind)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        yield kind, reader.parquet(str(folders / folder)).withWatermark(clock, DELAY)
    yield "side_input", spark.createDataFrame(oracle.side_input())


@pytest.mark.parametrize("query", NATIVE)
def test_spark_answers_over_streams_as_duckdb(
    spark: SparkSession, tables: Tables, folders: Path, tmp_path: Path, query: str
) -> None:
    expected = oracle.answer(query, tables)
    key = [expected.column_names.index(name) for name in oracle.KEY.get(query, ())]
    appended: list[tuple[Any, ...]] = []
    last_by_key: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def keep(batch: DataFrame, _number: int) -> None:
        rows = rows_of(batch.toArrow())
        appended.extend(rows)
        last_by_key.update({tuple(row[place] for place in key): row for row in rows})

    stream = ask(query, dict(streams(spark, folders, query))).writeStream.foreachBatch(keep)
    stream = stream.outputMode("update" if query in UPDATED else "append")
    stream = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    running = stream.start()
    running.awaitTermination()
    found = last_by_key.values() if query in UPDATED else appended
    assert Counter(found) == Counter(rows_of(expected))
    operators = [it for progress in running.recentProgress for it in progress.stateOperators]
    assert sum(it.numRowsDroppedByWatermark for it in operators) == 0
