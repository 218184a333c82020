"""Cases on Spark: each fault where it should be, the watermark by hand, several inputs in step."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.spec import ONLY
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.testing.streams.case import ALL_FAULTS, Arrival, Batch
from millstream.testing.streams.inputs import Source, define
from millstream.testing.streams.running import (
    Outcome,
    StreamRun,
    clone_session,
    state_store,
)
from tests.testing.streams.orders import SCHEMA, arrivals, order, orders_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(
    spark: SparkSession, place: Path, function: Any, batches: list[Batch], **sources: Source
) -> Outcome:
    definition = define(function, sources or {"orders": orders_source()})
    return StreamRun(definition, clone_session(spark), place / "run").run(batches)


def test_rows_come_in_the_batches_of_the_case_through_all_faults(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = [
        Batch(arrivals(order(number, 10 * number)), fault)
        for number, fault in enumerate([*ALL_FAULTS, None])
    ]
    outcome = run(spark, tmp_path, lambda orders: orders.select("id"), batches)
    assert [[row["id"] for row in rows] for rows in outcome.batches[ONLY] if rows] == [
        [number] for number in range(len(batches))
    ]
    ids = [it.batch_id for it in outcome.arrivals]
    assert ids == sorted(set(ids)), "each in a batch of its own"
    assert not outcome.changed


def test_watermark_is_where_it_is_put(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    batches = [
        Batch(arrivals(order(1, 10)), watermark=moment),
        Batch(arrivals(order(2, 20))),
    ]
    outcome = run(spark, tmp_path, lambda orders: orders, batches)
    assert [it.watermark for it in outcome.arrivals] == [None, moment]
    assert [row["id"] for row in outcome.rows()] == [1, 2], "what moved it is not seen"


def test_inputs_come_in_step(spark: SparkSession, tmp_path: Path) -> None:
    def both(orders: DataFrame, clicks: DataFrame) -> DataFrame:
        return orders.select("id").unionAll(clicks.select("id"))

    batches = [
        Batch(arrivals(order(1, 0))),
        Batch((*arrivals(order(2, 1)), Arrival("clicks", {"id": 102}))),
        Batch((Arrival("clicks", {"id": 103}),), "restart"),
        Batch(arrivals(order(4, 3))),
    ]
    clicks = Source([], schema=SCHEMA)
    outcome = run(spark, tmp_path, both, batches, orders=orders_source(), clicks=clicks)
    found = [sorted(row["id"] for row in rows) for rows in outcome.batches[ONLY] if rows]
    assert found == [[1], [2, 102], [103], [4]]


def test_offsets_number_the_rows_of_an_input(spark: SparkSession, tmp_path: Path) -> None:
    numbered = Source([], schema="id int, _offset long")
    batches = [
        Batch((Arrival("log", {"id": 7}), Arrival("log", {"id": 8})), "restart"),
        Batch((Arrival("log", {"id": 9}),)),
    ]
    outcome = run(spark, tmp_path, lambda log: log, batches, log=numbered)
    assert [(row["id"], row["_offset"]) for row in outcome.rows()] == [(7, 0), (8, 1), (9, 2)]
    assert [it.arrival.row["_offset"] for it in outcome.arrivals] == [0, 1, 2]


def test_structs_with_fields_that_may_not_be_null_come_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    def nested(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("named_struct('id', id, 'kind', 'x') as it", "array(1) as ones")

    outcome = run(spark, tmp_path, nested, [Batch(arrivals(order(1, 0)))])
    assert outcome.rows() == [{"it": {"id": 1, "kind": "x"}, "ones": [1]}]


def test_clone_leaves_the_session_as_it_was_and_sees_its_views(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("three")
    clone = clone_session(spark)
    assert clone.table("three").count() == 3
    with state_store(clone, ROCKSDB):
        assert clone.conf.get(STORE_PROVIDER) == ROCKSDB
        assert spark.conf.get(STORE_PROVIDER) != ROCKSDB
    assert clone.conf.get(STORE_PROVIDER) == spark.conf.get(STORE_PROVIDER)
