"""The sources in the plans of pipelines, with Spark's own `rate` in place of topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running import sharing
from millstream.pipelines.running.sharing import inputs_of, repeated_inputs, share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def streams(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> tuple[DataFrame, DataFrame]:
    monkeypatch.setattr(sharing, "INPUT_OPTION", "rampUpTime")  # an option that `rate` knows
    one, two = (
        spark.readStream.format("rate").option("rampUpTime", name).load() for name in ("1s", "2s")
    )
    return one, two


def test_inputs_of_a_plan_are_named_in_its_order(streams: tuple[DataFrame, DataFrame]) -> None:
    one, two = streams
    assert inputs_of(two.union(one).union(two)) == ["2s", "1s", "2s"]
    assert repeated_inputs({"a": one, "b": two}) == set()
    assert repeated_inputs({"a": one, "b": two.union(one)}) == {"1s"}
    assert repeated_inputs(one.union(one)) == {"1s"}


def test_rows_that_are_shared_are_computed_once(spark: SparkSession) -> None:
    """The plan of a batch: that of a stream is made by the same rules."""
    rows = spark.range(100).selectExpr("id", "id % 7 as a", "cast(id as string) as b")
    shared = share(rows)
    assert shared.schema == rows.schema
    counts = shared.groupBy("a").count().select("count")
    both = shared.where("id > 3").select("id").union(counts)
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # as in streams
    try:
        plan = both._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert plan.count("ReusedExchange") == 1
    assert len(both.collect()) == 96 + 7


def test_nothing_above_a_watermark_is_shared(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()

    def plan_of_two(rows: DataFrame) -> str:
        counts = rows.withWatermark("timestamp", "1 second").groupBy("timestamp").count()
        both = counts.union(counts)
        jvm: Any = spark._jvm
        simple = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
        return str(both._jdf.queryExecution().explainString(simple))

    reused = "ReusedExchange.*hashpartitioning"
    assert re.search(reused, plan_of_two(rows)), "Spark shares it unless the rows are shared below"
    plan = plan_of_two(share(rows))
    assert not re.search(reused, plan)
    assert plan.count("ReusedExchange") == 1
    assert plan.count("EventTimeWatermark") == 2
