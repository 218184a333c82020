"""The vocabulary of results: kinds of rows, late rows, and what is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.lateness import Lateness, split_late
from millstream.pipelines.results import (
    KIND_FIELD,
    LATENESS_FIELD,
    check_no_kind,
    drop_late,
    keep_results,
    with_kind,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = pa.timestamp("us", tz="UTC")


def rows(*times: int | None) -> pa.RecordBatch:
    return pa.record_batch({"time": pa.array(times, pa.int64()).cast(TIME)})


def test_row_at_or_before_the_bound_or_without_a_time_is_late() -> None:
    on_time, late = split_late(rows(4, 5, 6, None), "time", 5)
    assert on_time["time"].cast(pa.int64()).to_pylist() == [6]
    assert late["time"].cast(pa.int64()).to_pylist() == [4, 5, None]
    on_time, late = split_late(rows(6, 7), "time", 5)
    assert (on_time.num_rows, late.num_rows) == (2, 0)


def test_late_row_has_its_lateness_and_no_results() -> None:
    result = pa.field("average", pa.float64())
    schema = pa.schema([pa.field("time", TIME), result, KIND_FIELD, LATENESS_FIELD])
    found = with_kind(rows(1_000_000, None), "late", schema, "time", 3_500_000).to_pylist()
    assert [it["_lateness"] for it in found] == [2.5, None]
    assert {(it["average"], it["_kind"]) for it in found} == {(None, "late")}
    (final,) = with_kind(rows(1), "final", schema).to_pylist()
    assert (final["_kind"], final["_lateness"]) == ("final", None)


def test_dropped_kinds_are_removed_and_diverted_ones_stay(spark: SparkSession) -> None:
    kinds = ["final", "late", "duplicate"]
    columns = "id int, _kind string, _lateness double"
    found = spark.createDataFrame([(at, kind, None) for at, kind in enumerate(kinds)], columns)
    dropping = Lateness("drop", 0, "late.test")
    kept = keep_results(found, ["id"], dropping, "copies.test")
    assert [tuple(row) for row in kept.collect()] == [(0,)]
    kept = keep_results(found, ["id"], replace(dropping, stragglers="divert"), "copies.test")
    assert [tuple(row) for row in kept.collect()] == [(0, "final", None), (1, "late", None)]
    with pytest.raises(ConfigError, match="there is already a column _kind"):
        check_no_kind(found)


def test_late_rows_are_counted_where_no_other_output_has_them(spark: SparkSession) -> None:
    from pyspark.sql.functions import col, sum

    rows = spark.range(5)
    dropped = drop_late(rows, col("id") < 2, Lateness(count_as="late.test"))
    assert [it.id for it in dropped.collect()] == [2, 3, 4]
    plan = "CollectMetrics late.test"
    assert plan in dropped._jdf.queryExecution().analyzed().toString()
    several = drop_late(rows, col("id") < 2, Lateness(count_as="late.test"), count=sum("id"))
    assert "sum(id" in several._jdf.queryExecution().analyzed().toString()
    diverted = drop_late(rows, col("id") < 2, Lateness("divert"))
    assert [it.id for it in diverted.collect()] == [2, 3, 4]
    assert "CollectMetrics" not in diverted._jdf.queryExecution().analyzed().toString()
