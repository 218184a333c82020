"""The output mode that fits, for plans of a stream that nobody starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.output_modes import choose_output_mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declared(key: str = "", output_mode: str | None = None) -> Pipeline:
    writes = table("t", key=key) if key else table("t")
    declare = pipeline(reads=topic("in"), writes=writes, name="p", output_mode=output_mode)
    return declare(lambda frame: frame)


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("value").count()


def windowed(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("timestamp", "1 minute").groupBy("timestamp").count()


def sessions(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import session_window

    late = frame.withWatermark("timestamp", "1 minute")
    return late.groupBy(session_window("timestamp", "1 minute"), "value").count()


def final_windows(frame: DataFrame) -> DataFrame:
    from millstream.pipelines.windows import tumbling

    late = frame.withWatermark("timestamp", "1 minute")
    late = late.selectExpr("*", "cast(null as timestamp) as _watermark")
    return late.transform(tumbling("1 minute", time="timestamp", n="count(*)"))


def heavy(frame: DataFrame) -> DataFrame:
    """An aggregate behind state in buckets."""
    from millstream.pipelines.analytics import heavy_hitters
    from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER

    before = str(frame.sparkSession.conf.get(STORE_PROVIDER))
    frame.sparkSession.conf.set(STORE_PROVIDER, ROCKSDB)
    late = frame.withWatermark("timestamp", "1 minute")
    found = late.transform(heavy_hitters, "1 minute", key="value", time="timestamp", by="value")
    frame.sparkSession.conf.set(STORE_PROVIDER, before)
    return found


@pytest.mark.parametrize(
    ("function", "key", "mode"),
    [
        (lambda frame: frame, "", "append"),
        (lambda frame: frame, "value", "append"),
        (lambda frame: frame.dropDuplicates(["value"]), "value", "append"),
        (counted, "value", "update"),
        (windowed, "timestamp", "update"),
        (windowed, "", "append"),
        (sessions, "value", "append"),
        (final_windows, "window_start", "append"),
        (heavy, "window_start", "append"),
    ],
)
def test_mode_fits_the_plan_and_the_output(
    stream: DataFrame, function: Callable[[Any], Any], key: str, mode: str
) -> None:
    assert choose_output_mode(declared(key), function(stream)) == mode


def test_rows_beside_an_aggregate_with_a_key_need_none(stream: DataFrame) -> None:
    writes = {"counts": table("c", key="value"), "rows": table("r")}
    several = pipeline(reads=topic("in"), writes=writes, name="p")(lambda frame: frame)
    assert choose_output_mode(several, {"counts": counted(stream), "rows": stream}) == "update"
    with pytest.raises(ConfigError, match="into an output without a key"):
        choose_output_mode(several, {"counts": stream, "rows": counted(stream)})


def test_aggregate_that_is_never_final_needs_a_key_or_a_watermark(stream: DataFrame) -> None:
    with pytest.raises(
        ConfigError, match=r"without a watermark it is never final.*or give the out"
    ):
        choose_output_mode(declared(), counted(stream))


def test_aggregate_of_a_table_that_stands_still_does_not_count(
    spark: SparkSession, stream: DataFrame
) -> None:
    still = spark.range(5).groupBy("id").count().withColumnRenamed("id", "value")
    assert choose_output_mode(declared(), stream.join(still, "value")) == "append"


def labels(frame: DataFrame) -> DataFrame:
    """Rows that do not change."""
    return frame.sparkSession.sql("select 2L as count, 2L as value, 'two' as label")


def named(frame: DataFrame, query: str) -> DataFrame:
    frame.createOrReplaceTempView("rows")
    labels(frame).drop("count").createOrReplaceTempView("labels")
    return frame.sparkSession.sql(query)


def both(condition: str) -> Callable[[DataFrame], DataFrame]:
    """An output for some of the groups, and one for all of them."""
    some = f"case when {condition} then struct(value, count) end as some"
    return lambda frame: counted(frame).selectExpr(some, "struct(value, count) as every")


def per_minute(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import window

    return frame.groupBy(window("timestamp", "1 minute"), "value").count()


def of_minutes(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import count, window

    return frame.groupBy(window("timestamp", "1 minute")).agg(count("*").alias("n"))


ROWS_THAT_GO: dict[str, Callable[[DataFrame], DataFrame]] = {
    "filter": lambda frame: counted(frame).where("count > 1"),
    "filter of a renamed value": lambda frame: (
        counted(frame).selectExpr("value", "count + 1 as n").where("n > 1")
    ),
    "filter of a named query": lambda frame: named(
        frame,
        "with counts as (select value, count(*) as count from rows group by value) "
        "select * from counts where count > 1",
    ),
    "inner join": lambda frame: counted(frame).join(labels(frame).drop("value"), "count"),
    "semi join": lambda frame: counted(frame).join(labels(frame), "count", "left_semi"),
    "anti join": lambda frame: counted(frame).join(labels(frame), "count", "left_anti"),
    "explode": lambda frame: counted(frame).selectExpr(
        "value", "explode(case when count > 1 then array(count) end) as n"
    ),
    "sample": lambda frame: counted(frame).sample(0.5),
    "function": lambda frame: counted(frame).mapInPandas(lambda rows: rows, "value long"),
    "union": lambda frame: counted(frame).where("count > 1").union(counted(frame)),
    "filter by the time of the batch": lambda frame: (
        frame.groupBy("value", "timestamp").count().where("timestamp > current_timestamp()")
    ),
}


@pytest.mark.parametrize("removing", ROWS_THAT_GO.values(), ids=ROWS_THAT_GO)
def test_aggregate_whose_rows_may_go_is_refused_in_update_mode(
    stream: DataFrame, removing: Callable[[Any], Any]
) -> None:
    with pytest.raises(ConfigError, match=r"rows of t that no longer pass.*delete=\"gone\""):
        choose_output_mode(declared("value"), removing(stream))
    given = declared("value", output_mode="update")
    assert choose_output_mode(given, removing(stream)) == "update"


ROWS_THAT_STAY: dict[str, Callable[[DataFrame], DataFrame]] = {
    "filter by the key": lambda frame: counted(frame).where("value > 1"),
    "filter before": lambda frame: counted(frame.where("value > 1")),
    "filter of what the key makes": lambda frame: (
        counted(frame).selectExpr("value", "value + 1 as v", "count").where("v > 1")
    ),
    "join by the key": lambda frame: counted(frame).join(labels(frame).drop("count"), "value"),
    "join of the other side": lambda frame: (
        labels(frame).drop("count").join(counted(frame), "value")
    ),
    "outer join": lambda frame: counted(frame).join(labels(frame).drop("value"), "count", "left"),
    "explode of the key": lambda frame: counted(frame).selectExpr(
        "value", "count", "explode(sequence(1, value)) as n"
    ),
    "repartition": lambda frame: counted(frame).repartition(2).alias("counts").coalesce(1),
    "named queries": lambda frame: named(
        frame,
        "with some as (select * from rows where value > 1), "
        "counts as (select value, count(*) as count from some group by value) "
        "select a.value, count, label from counts a join labels b on a.value = b.value",
    ),
    "rows that come once": lambda frame: counted(frame).unionByName(
        frame.selectExpr("value", "1L as count").where("count > 0")
    ),
}


@pytest.mark.parametrize("keeping", ROWS_THAT_STAY.values(), ids=ROWS_THAT_STAY)
def test_aggregate_whose_rows_stay_is_updated(
    stream: DataFrame, keeping: Callable[[Any], Any]
) -> None:
    assert choose_output_mode(declared("value"), keeping(stream)) == "update"


def test_structs_that_may_be_null_are_filtered_by_their_outputs(stream: DataFrame) -> None:
    writes = {"some": table("s", key="value"), "every": table("e", key="value")}
    several = pipeline(reads=topic("in"), writes=writes, name="p")(lambda frame: frame)
    assert choose_output_mode(several, both("value > 1")(stream)) == "update"
    with pytest.raises(ConfigError, match=r"p filters an aggregate.*: rows of s that no longer"):
        choose_output_mode(several, both("count < 3")(stream))


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (counted, "count"),
        (counted, ("value", "count")),
        (lambda frame: counted(frame).selectExpr("uuid() as id", "*"), "id"),
        (lambda frame: counted(frame).selectExpr("now() as at", "*"), ("at", "value")),
        (lambda frame: counted(frame).join(labels(frame), "count", "left"), "label"),
        (lambda frame: counted(frame).selectExpr("if(count > 1, value, 0L) as id"), "id"),
    ],
)
@pytest.mark.parametrize("output", [table, topic])
def test_key_that_changes_with_the_aggregate_is_refused(
    stream: DataFrame, function: Callable[[Any], Any], key: Any, output: Any
) -> None:
    declare = pipeline(reads=topic("in"), writes=output("t", key=key), name="p")
    with pytest.raises(ConfigError, match=r"into t by the key .*, which changes with the aggre"):
        choose_output_mode(declare(lambda frame: frame), function(stream))


@pytest.mark.parametrize("mode", ["upsert", "replace"])
@pytest.mark.parametrize(
    ("function", "key", "lacking"),
    [
        (per_minute, "value", "window"),
        (lambda frame: per_minute(frame).selectExpr("window.end", "count"), "end", "value"),
        (lambda frame: counted(frame).selectExpr("value % 2 as v"), "v", "value"),
        (lambda frame: counted(frame).selectExpr("int(value) as v"), "v", "value"),
        (lambda frame: counted(frame).selectExpr("1 as v", "count"), "v", "value"),
    ],
)
def test_key_of_a_table_has_all_that_the_aggregate_is_grouped_by(
    stream: DataFrame, function: Callable[[Any], Any], key: str, lacking: str, mode: Any
) -> None:
    declare = pipeline(reads=topic("in"), writes=table("t", key=key, mode=mode), name="p")
    with pytest.raises(ConfigError, match=f"groups that differ in {lacking} would overwrite"):
        choose_output_mode(declare(lambda frame: frame), function(stream))
    into_topic = pipeline(reads=topic("in"), writes=topic("t", key=key), name="p")
    assert choose_output_mode(into_topic(lambda frame: frame), function(stream)) == "update"


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda frame: per_minute(frame).select("window.start", "value"), ("start", "value")),
        (lambda frame: per_minute(frame).select("window.end", "value"), ("value", "end")),
        (lambda frame: counted(frame).selectExpr("string(value) as id", "count"), "id"),
        (lambda frame: of_minutes(frame).selectExpr("string(window.start) as at", "n"), "at"),
        (lambda frame: counted(frame).selectExpr("'all' as what", "value"), ("what", "value")),
        (lambda frame: frame.groupBy().count().selectExpr("'all' as id", "count"), "id"),
        (lambda frame: frame.groupBy(frame.value % 7).count().toDF("v", "n"), "v"),
        (
            lambda frame: counted(frame).unpivot("value", ["count"], "name", "number"),
            ("value", "name"),
        ),
    ],
)
def test_key_may_contain_what_is_fixed_for_a_group(
    stream: DataFrame, function: Callable[[Any], Any], key: Any
) -> None:
    for mode in ("upsert", "replace"):
        declare = pipeline(reads=topic("in"), writes=table("t", key=key, mode=mode), name="p")
        assert choose_output_mode(declare(lambda frame: frame), function(stream)) == "update"


def test_text_of_a_time_is_a_key_where_clocks_are_not_put_back(
    spark: SparkSession, stream: DataFrame
) -> None:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    made = of_minutes(stream).selectExpr("string(window.start) as at", "n")
    spark.conf.set("spark.sql.session.timeZone", before)
    with pytest.raises(ConfigError, match=r"groups that differ in window.*a window by its start"):
        choose_output_mode(declared("at"), made)


def test_aggregate_is_not_added_to_a_table_with_a_key(stream: DataFrame) -> None:
    writes = table("t", key="value", mode="append")
    declare = pipeline(reads=topic("in"), writes=writes, name="p")
    with pytest.raises(ConfigError, match=r"table t, to which rows are added.*Leave out mode"):
        choose_output_mode(declare(lambda frame: frame), counted(stream))
    assert choose_output_mode(declare(lambda frame: frame), sessions(stream)) == "append"


def test_mode_that_is_given_is_taken(stream: DataFrame) -> None:
    assert choose_output_mode(declared(output_mode="complete"), counted(stream)) == "complete"
