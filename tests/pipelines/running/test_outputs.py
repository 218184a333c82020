"""Several outputs as one DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.outputs import checked, combine, rows_of, unite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def declared() -> Pipeline:
    writes = {"all": table("everything"), "large": topic("large")}
    return pipeline(reads=topic("in"), writes=writes, name="p")(lambda frame: frame)


def test_frames_by_name_are_united_and_found_again(spark: SparkSession, declared: Pipeline) -> None:
    numbers = spark.range(4)
    large = numbers.where("id > 2").selectExpr("id", "'much' as word")
    united = unite(declared, {"large": large, "all": numbers})
    assert sorted(row.id for row in rows_of(united, "all").collect()) == [0, 1, 2, 3]
    assert [tuple(row) for row in rows_of(united, "large").collect()] == [(3, "much")]


def test_frame_of_structs_is_taken_as_it_is(spark: SparkSession, declared: Pipeline) -> None:
    tagged = spark.range(4).selectExpr(
        "struct(id) as all", "case when id > 2 then struct(id, 'much' as word) end as large"
    )
    assert checked(declared, tagged) is tagged
    assert [tuple(row) for row in rows_of(tagged, "large").collect()] == [(3, "much")]


def test_result_of_another_shape_is_refused(spark: SparkSession, declared: Pipeline) -> None:
    stream: Any = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match="returns large, and its outputs are all, large"):
        combine(declared, {"large": stream})
    with pytest.raises(ConfigError, match="should return a struct column for each of all, large"):
        combine(declared, stream)
    one = declared.variant("one", writes=table("t"))
    with pytest.raises(ConfigError, match="returns several DataFrames and declares one output"):
        combine(one, {"large": stream})
    assert combine(one, stream) is stream
