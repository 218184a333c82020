"""Micro-batches of Spark into both stores: few rows go by the driver, many by staging tables."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import SchemaMismatch, StoreError
from millstream.pipelines.stores import Store, TableSpec
from tests.pipelines.stores.conftest import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANY = 50_000  # over two tasks: more than either hands to the driver
LEFTOVERS = "SELECT relname FROM pg_class WHERE relname LIKE 'millstream_stage%'"


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "id",
        "concat('user-', id % 1000) AS user",
        "id / 2.0D AS amount",
        "timestamp_millis(id * 1000) AS at",
        "CAST(id AS decimal(20, 3)) AS price",
        "named_struct('n', id) AS nested",
    )


@pytest.mark.parametrize("count", [0, 7, MANY])
def test_rows_of_a_frame_are_in_the_table(
    spark: SparkSession, store: Store, database: Database, count: int
) -> None:
    table = TableSpec("numbers", ("id",))
    for batch_id in range(2):  # the second updates every row
        assert store.write(numbers(spark, count), batch_id, "q", table, "{}")
    assert not store.write(numbers(spark, count), 1, "q", table, "{}")
    digest = "SELECT count(*), coalesce(sum(id), 0), coalesce(sum(amount), 0) FROM numbers"
    total = count * (count - 1) // 2
    assert database.rows(digest) == [(count, total, total / 2)]
    if not database.is_sqlite:
        assert database.rows(LEFTOVERS) == []


def test_keys_in_several_tasks_are_merged_in_the_order_of_partitions(
    spark: SparkSession, store: Store, database: Database
) -> None:
    frame = spark.range(0, 2 * MANY, 1, 2).selectExpr(f"id % {MANY} AS id", "id AS value")
    store.write(frame, 0, "q", TableSpec("numbers", ("id",)))
    assert database.rows("SELECT count(*), min(value) FROM numbers") == [(MANY, MANY)]


def test_replaced_keys_are_gathered_from_all_tasks(
    spark: SparkSession, store: Store, database: Database
) -> None:
    table = TableSpec("numbers", ("key",), "replace", delete="gone")
    frame = spark.range(0, MANY, 1, 2).selectExpr("id % 100 AS key", "id", "key = 5 AS gone")
    for batch_id in range(2):
        store.write(frame, batch_id, "q", table)
    found = database.rows("SELECT count(*), count(DISTINCT key) FROM numbers")
    assert found == [(MANY - MANY // 100, 99)]


@pytest.mark.parametrize("count", [10, MANY])
def test_null_key_in_a_task_is_refused_by_name(
    spark: SparkSession, store: Store, database: Database, count: int
) -> None:
    frame = spark.range(0, count, 1, 2).selectExpr("nullif(id, 3) AS id", "id AS value")
    with pytest.raises(StoreError, match=r"1 of .* rows have no value in key column 'id'"):
        store.write(frame, 0, "q", TableSpec("numbers", ("id",)))
    assert database.rows("SELECT * FROM numbers") == []
    assert store.last_batch("q") is None


def test_several_frames_are_one_decision(
    spark: SparkSession, store: Store, database: Database
) -> None:
    frame = numbers(spark, MANY).cache()
    outputs = [
        (frame.select("id", "user"), TableSpec("users", ("id",))),
        (frame.groupBy("user").count(), TableSpec("counts", ("user",))),
    ]
    assert store.write_many(outputs, 0, "q", decision='["transaction"]')
    frame.unpersist()
    assert database.rows("SELECT count(*) FROM users") == [(MANY,)]
    assert database.rows("SELECT count(*), sum(count) FROM counts") == [(1000, MANY)]


def test_type_that_no_store_keeps_is_refused_before_the_batch(
    spark: SparkSession, store: Store
) -> None:
    frame = spark.sql("SELECT 1L AS id, INTERVAL '1' DAY AS pause")
    with pytest.raises(SchemaMismatch, match=r"column 'pause'.*cast it"):
        store.prepare(frame.schema, TableSpec("pauses", ("id",)))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A directory that a stream reads; every file is a batch."""
    directory = tmp_path / "lines"
    directory.mkdir()
    for number in range(3):
        content = "\n".join(json.dumps({"user": f"u{n % 3}"}) for n in range(10 * (number + 1)))
        (directory / f"{number}.json").write_text(content)
    return directory


def run_counts(spark: SparkSession, store: Store, lines: Path, checkpoint: Path) -> None:
    """Counts per user, with state, into a table."""
    counts = (
        spark.readStream.schema("user string")
        .option("maxFilesPerTrigger", "1")
        .json(str(lines))
        .groupBy("user")
        .count()
    )
    table = TableSpec("counts", ("user",))
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(lambda batch, batch_id: store.write(batch, batch_id, "counts", table))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_repeated_batch_of_a_stream_with_state_goes_on(
    spark: SparkSession, database: Database, lines: Path, tmp_path: Path
) -> None:
    """Spark loses its last commit: the batch is not written again, but its state must be."""
    checkpoint = tmp_path / "checkpoint"
    with database.open() as store:
        run_counts(spark, store, lines, checkpoint)
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    (lines / "3.json").write_text('{"user": "u0"}')
    with database.open() as store:
        run_counts(spark, store, lines, checkpoint)
        progress = store.progress("counts")
    assert progress is not None
    assert (progress.batch_id, progress.epoch) == (3, 2)
    assert progress.checkpoint == json.loads((checkpoint / "metadata").read_text())["id"]
    assert sorted(database.rows('SELECT "user", count FROM counts')) == [
        ("u0", 22),
        ("u1", 20),
        ("u2", 19),
    ]


def test_deleted_checkpoint_is_noticed(spark: SparkSession, tmp_path: Path, lines: Path) -> None:
    from pyspark.errors import StreamingQueryException

    database = Database(f"sqlite:///{tmp_path}/store.db")
    with database.open() as store:
        run_counts(spark, store, lines, tmp_path / "checkpoint")
        with pytest.raises(StreamingQueryException, match="another checkpoint"):
            run_counts(spark, store, lines, tmp_path / "new checkpoint")
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("SELECT sum(count) FROM counts").fetchone() == (60,)
