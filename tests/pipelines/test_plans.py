"""What stands before an operator in one query: no aggregation before state in buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from examples.nexmark.best_match import best_match
from examples.nexmark.last_rows import last_rows

from millstream.errors import ConfigError
from millstream.pipelines.analytics import (
    deduplicate,
    flag_anomalies,
    heavy_hitters,
    rolling,
    smooth,
)
from millstream.pipelines.joins import as_of_join, enrich, lookup
from millstream.pipelines.plans import (
    analyzed,
    expression_text,
    operators_by_arrival,
    stateful_operators,
)
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.windows import sliding, tumbling
from tests.pipelines.windows.streams import Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

OPERATORS: dict[str, Callable[[DataFrame, DataFrame], Any]] = {
    "rolling": lambda it, _: rolling(it, "1 hour", key="user", time="window_end", count="count(*)"),
    "flag_anomalies": lambda it, _: flag_anomalies(
        it, "n", key="user", time="window_end", over="1 hour"
    ),
    "smooth": lambda it, _: smooth(it, "n", key="user", time="window_end", half_life="1 hour"),
    "deduplicate": lambda it, _: deduplicate(it, "1 hour", key="user", time="window_end"),
    "heavy_hitters": lambda it, _: heavy_hitters(
        it, "1 hour", key="user", time="window_end", by="n"
    ),
    "sliding": lambda it, _: sliding("1 hour", key="user", time="window_end", most="max(n)")(it),
    "last_rows": lambda it, _: last_rows(
        it, key="user", order_by="window_end", rows=3, allowed_lateness="1 hour", most="max(n)"
    ),
    "as_of_join": lambda it, rows: as_of_join(
        it, rows, "user", time="window_end", valid_from="time"
    ),
    "as_of_join, its versions": lambda it, rows: as_of_join(
        rows, it, "user", time="time", valid_from="window_end"
    ),
    "best_match": lambda it, rows: best_match(
        it,
        rows,
        "user",
        time="window_start",
        until="window_end",
        right_time="time",
        order_by="time",
        how="left",
    ),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_state_in_buckets_is_refused_behind_an_aggregation(
    spark: SparkSession, tmp_path: Path, operator: Callable[[DataFrame, DataFrame], Any]
) -> None:
    """Its rows would be late, and dropped, whenever the watermark leaps. History has none."""
    files = Files(spark, tmp_path)
    files.write([[("ann", 1, 1.0), ("ann", 70, 1.0)]])
    window = tumbling("1 minute", key="user", time="time", n="count(*)")

    def run(rows: DataFrame) -> DataFrame:
        return operator(rows.transform(window).drop("_kind"), rows.select("user", "time"))

    with pytest.raises(ConfigError, match="write the aggregate into a topic"):
        run(files.stream("1 second"))
    assert run(files.history()).count() > 0


def test_operators_that_depend_on_arrival_are_found_behind_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path)
    files.write([[("ann", 1, 1.0)]])

    def found(frame: DataFrame) -> set[str]:
        return operators_by_arrival(analyzed(frame.where("user <> 'bob'").select("user")))

    rows, users = files.stream("1 second"), files.stream("1 second").select("user", "time")
    users = users.withColumnRenamed("time", "since")
    assert found(rows) == set()
    asked = lookup(rows, "user", lambda keys: {}, "country string")
    assert found(asked) == {"lookup"}
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    try:
        enriched = enrich(asked, users, "user", sequence="since")
    finally:
        spark.conf.set(STORE_PROVIDER, str(before))
    assert found(enriched) == {"enrich", "lookup"}


def test_text_of_an_expression_is_the_same_whenever_it_is_made(spark: SparkSession) -> None:
    from pyspark.sql.functions import col, udf

    frame = spark.createDataFrame([], "age int, name string")

    def adult() -> str:
        return expression_text(frame, (col("age") > 17) & udf(str.isalpha, "boolean")("name"))

    assert adult() == adult()
    assert "(age > 17)" in adult()
    assert expression_text(frame, col("age") > 18) != expression_text(frame, col("age") > 17)


def test_operators_with_state_are_described_by_what_their_state_depends_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    files = Files(spark, tmp_path)
    files.write([[("ann", 1, 1.0)]])

    def found(frame: DataFrame) -> list[str]:
        return stateful_operators(analyzed(frame))

    rows = files.stream("1 second")
    assert found(rows.where("user <> 'bob'").select("user")) == []
    counted = rows.groupBy("user").agg(F.count("*").alias("n"))
    renamed = rows.where("user <> 'bob'").groupBy("user").agg(F.count("*").alias("m"))
    assert found(counted) == found(renamed.where("m > 1").select("m"))
    assert found(counted) != found(rows.groupBy("user").agg(F.max("time").alias("n")))
    assert found(counted) != found(rows.groupBy("time").agg(F.count("*").alias("n")))
    assert found(rows.dropDuplicates(["user"])) != found(rows.dropDuplicates(["user", "time"]))
    others = rows.select(F.col("user").alias("other"), F.col("time").alias("since"))
    joined = rows.join(others, F.expr("user = other"))
    assert found(joined) != found(rows.join(others, F.expr("user = other and time = since")))
    assert len(found(joined)) == 1


def test_settings_of_an_operator_are_part_of_its_description(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path)
    files.write([[("ann", 1, 1.0)]])
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    try:
        rows = files.stream("1 second")
        (hour,), (day,) = (
            stateful_operators(
                analyzed(rolling(rows, size, key="user", time="time", count="count(*)"))
            )
            for size in ("1 hour", "1 day")
        )
    finally:
        spark.conf.set(STORE_PROVIDER, str(before))
    assert hour != day
