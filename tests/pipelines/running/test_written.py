"""Rows written are counted by output and kind, in the progress of the query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.launching import launch
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.written import WRITTEN, count_written
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_kinds_of_rows_are_counted_where_rows_have_one(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("late",), ("final",), ("correction",)], "_kind string")
    declared = pipeline(reads=topic("t"), writes=table("sales"), name="p")(lambda frame: frame)
    (counted,) = [
        it
        for it in str(count_written(declared, rows)._jdf.queryExecution().analyzed()).split("\n")
        if WRITTEN in it
    ]
    for name in ("sales.rows", "sales.late", "sales.corrections"):
        assert name in counted


def test_rows_of_each_output_are_in_the_progress(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    name, other = topics.create(), topics.create()
    topics.fill(name, [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'])

    def split(frame: DataFrame) -> dict[str, DataFrame]:
        return {"all": frame.selectExpr("id", "'late' AS _kind"), "few": frame.where("id > 1")}

    declared = pipeline(
        reads=topic(name, schema="id long"),
        writes={"all": table("t_all"), "few": topic(other, key="id")},
        name=f"split-{name}",
    )(split)
    settings = Settings(home=tmp_path, broker=topics.bootstrap, checkpoint=str(tmp_path / "c"))
    query = run_to_end(lambda: launch(declared, spark, settings, once=True))
    assert query.lastProgress is not None
    assert query.lastProgress["observedMetrics"][WRITTEN].asDict() == {
        "all.rows": 3,
        "all.late": 3,
        "all.corrections": 0,
        "few.rows": 2,
    }
