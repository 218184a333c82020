"""What a plan tells: sources, watermarks, keys and how long state is kept, of every operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.analytics import deduplicate, heavy_hitters, rolling, smooth
from millstream.pipelines.joins import as_of_join, interval_join
from millstream.pipelines.running.explaining import explain
from millstream.pipelines.running.plan_steps import FOREVER, Step, delivery, operator_step
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.windows import hopping, session, sliding, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = topic(
    "orders",
    schema="id long, shop string, at timestamp, amount double",
    watermark=("at", "10 seconds"),
    bad_records="drop",
)
CLICKS = topic(
    "clicks",
    schema="order_id long, clicked_at timestamp",
    watermark=("clicked_at", "1 minute"),
)
RATES = topic("rates", schema="shop string, since timestamp, rate double")


@pytest.fixture(scope="module")
def session_with_rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield spark
    spark.conf.set(STORE_PROVIDER, str(before))


@pytest.fixture
def steps(session_with_rocksdb: SparkSession, tmp_path: Path) -> Callable[..., list[Step]]:
    """The steps of a function of orders, clicks and rates, of those that it takes."""

    def explained(function: Callable[..., DataFrame], key: Any = "", mode: str = "append") -> Any:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        reads = {name: {"orders": ORDERS, "clicks": CLICKS, "rates": RATES}[name] for name in names}
        writes = table("t", key=key) if key else table("t")
        declare = pipeline(reads=reads, writes=writes, name="p")
        settings = Settings(home=tmp_path, checkpoint=str(tmp_path))
        found = explain(declare(function), session_with_rocksdb, settings)
        assert found.output_mode == mode
        return found.steps

    return explained


def test_source_shows_its_format_and_where_bad_records_go(steps: Any) -> None:
    source, mark = steps(lambda orders: orders.where("amount > 1"))
    assert source.title == "topic orders"
    assert dict(source.details) == {
        "format": "json",
        "from": "earliest, at the first start",
        "bad records": "drop",
    }
    assert mark.title == "watermark on at, 10 seconds behind the newest"


def by_shop(orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").count()


def test_aggregate_without_a_time_is_kept_forever(steps: Any) -> None:
    (found,) = [it for it in steps(by_shop, "shop", "update") if it.has_state]
    assert found.title == "aggregate by shop"
    assert dict(found.details)["kept"] == FOREVER
    assert found.grows


def by_minute(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import sum as total
    from pyspark.sql.functions import window

    return orders.groupBy(window("at", "1 minute"), "shop").agg(total("amount").alias("spent"))


def by_session(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import session_window

    return orders.groupBy(session_window("at", "1 minute"), "shop").count()


def by_start(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import upper, window

    minute = window("at", "1 minute").start.alias("minute")
    return orders.groupBy(minute, upper("shop")).count()


def test_start_of_a_window_is_not_known_to_pass(steps: Any) -> None:
    (found,) = [it for it in steps(by_start, ("minute", "upper(shop)"), "update") if it.has_state]
    assert found.title == "aggregate by minute, upper(shop)"
    assert dict(found.details)["kept"] == FOREVER


@pytest.mark.parametrize(
    ("function", "title", "kept"),
    [
        (by_minute, "aggregate by window, shop", "until the watermark passes window"),
        (by_session, "aggregate by session_window, shop", "until the watermark passes session_w"),
        (
            lambda orders: orders.transform(tumbling("1 minute", time="at", n="count(*)")),
            "aggregate by window_start, window_end",
            "until the watermark passes window_end",
        ),
        (
            lambda orders: orders.dropDuplicates(["id", "at"]),
            "one row for each id, at",
            "until the watermark passes at",
        ),
        (
            lambda orders: orders.dropDuplicatesWithinWatermark(["id"]),
            "one row for each id",
            "until the watermark passes at",
        ),
        (lambda orders: orders.dropDuplicates(["id"]), "one row for each id", FOREVER),
    ],
)
def test_native_state_is_kept_until_the_watermark_passes_it(
    steps: Any, function: Any, title: str, kept: str
) -> None:
    (found,) = [it for it in steps(function) if it.has_state]
    assert found.title == title
    assert dict(found.details)["kept"].startswith(kept)
    assert found.grows == (kept == FOREVER)


@pytest.mark.parametrize(
    ("window", "told", "title", "kept"),
    [
        (
            hopping("1 minute", "30 s", time="at", key="shop", emit="change", n="count(*)"),
            "hopping 1 minute by 30 seconds, the end of the window",
            "hopping 1 minute by 30 seconds windows with several results",
            "a row for each key and window, until the watermark has passed its end",
        ),
        (
            session(
                "5 s", time="at", stragglers="correct", allowed_lateness="1 hour", n="count(*)"
            ),
            "session 5 seconds, time + gap + 1 hour",
            "sessions of 5 seconds with several results",
            "a row for each key and session, until 1 hour after the watermark has passed its end",
        ),
    ],
)
def test_windows_show_their_rule_and_their_state(
    steps: Any, window: Any, told: str, title: str, kept: str
) -> None:
    def function(orders: DataFrame) -> DataFrame:
        return orders.transform(window)

    found = steps(function)
    titles = [it.title for it in found]
    assert f"late rows are found: {told} at or behind the watermark" in titles
    (state,) = [it for it in found if it.has_state]
    assert state.title == title
    assert dict(state.details)["kept, rows"] == kept
    assert dict(state.details)["state"] == "16 buckets of keys, in Python"
    assert not state.grows


def test_sliding_window_shows_its_state(steps: Any) -> None:
    def function(orders: DataFrame) -> DataFrame:
        return orders.transform(sliding("10 minutes", key="shop", time="at", n="count(*)"))

    (found,) = [it for it in steps(function) if it.has_state]
    assert found.title == "sliding window of 10 minutes"
    assert dict(found.details)["keys of events"] == "shop"
    assert dict(found.details)["kept, events"] == "until they are 10 minutes behind the watermark"


def test_analytics_show_how_long_they_keep_their_state(steps: Any) -> None:
    def without_copies(orders: DataFrame) -> DataFrame:
        return orders.transform(deduplicate, "1 hour", key="id", time="at")

    def smoothed(orders: DataFrame) -> DataFrame:
        return orders.transform(smooth, "amount", key="shop", time="at", half_life="1 minute")

    (copies,) = [it for it in steps(without_copies) if it.has_state]
    assert dict(copies.details)["kept, seen"] == "until they are 1 hour behind the watermark"
    (averages,) = [it for it in steps(smoothed) if it.has_state]
    assert dict(averages.details)["kept, averages"] == (
        "until the last event of their key is 32 minutes behind the watermark"
    )


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (
            lambda orders: deduplicate(orders, "1 hour", key="id", time="at", count_as="sent"),
            {
                'late rows are dropped, and counted as "sent"',
                'duplicate rows are dropped, and counted as "sent.duplicates"',
            },
        ),
        (
            lambda orders: deduplicate(orders, "10 seconds", key="id", time="at", count_as="sent"),
            {'late rows are dropped, and counted as "sent"'},
        ),
        (
            lambda orders: rolling(
                orders,
                "1 hour",
                key="shop",
                time="at",
                every="1 hour",
                count_as="sent",
                n="count(*)",
            ),
            {'late rows are dropped, and counted as "sent"'},
        ),
        (
            lambda orders: heavy_hitters(
                orders, "1 hour", key="shop", time="at", by="id", count_as="sent"
            ),
            {'late rows are dropped, and counted as "sent"'},
        ),
    ],
)
def test_dropped_rows_are_shown_whatever_their_count_is_named(
    steps: Any, count: Any, told: set[str]
) -> None:
    def function(orders: DataFrame) -> Any:
        return count(orders)

    assert {it.title for it in steps(function) if " are dropped" in it.title} == told


def test_interval_join_keeps_both_sides_within_their_reach(steps: Any) -> None:
    def function(orders: DataFrame, clicks: DataFrame) -> DataFrame:
        return orders.transform(
            interval_join,
            clicks,
            {"id": "order_id"},
            time="at",
            right_time="clicked_at",
            band=("0 seconds", "10 minutes"),
        )

    found = steps(function)
    (join,) = [it for it in found if it.has_state]
    assert join.title == "inner join"
    assert not join.grows
    assert dict(join.details)["kept"] == (
        "left until the watermark passes _left_due; "
        "right until the watermark is 10 minutes past _right_due"
    )
    assert [it.title for it in found if it.title.startswith("topic")] == [
        "topic orders",
        "topic clicks",
    ]
    assert len(join.inputs) == 2


def test_join_without_a_bound_grows(steps: Any) -> None:
    def function(orders: DataFrame, clicks: DataFrame) -> DataFrame:
        return orders.drop("_watermark").join(clicks, orders.id == clicks.order_id)

    (join,) = [it for it in steps(function) if it.has_state]
    assert join.grows
    assert FOREVER in dict(join.details)["kept"]
    assert dict(join.details)["on"] == "id = order_id"


def test_as_of_join_has_both_of_its_inputs_and_tables(steps: Any) -> None:
    def function(orders: DataFrame, rates: DataFrame) -> DataFrame:
        return orders.drop("_watermark").transform(
            as_of_join, rates, "shop", time="at", valid_from="since"
        )

    (join,) = [it for it in steps(function) if it.has_state]
    assert len(join.inputs) == 2
    assert {name for name, _ in join.details} >= {"keys of events", "keys of versions"}


def test_table_that_does_not_change_is_no_state(steps: Any) -> None:
    def function(orders: DataFrame) -> DataFrame:
        shops = orders.sparkSession.createDataFrame([("north", 1)], "shop string, size int")
        return orders.join(shops, "shop")

    found = steps(function)
    assert not [it for it in found if it.has_state]
    assert "inner join with rows that do not change" in [it.title for it in found]


def test_plan_that_spark_does_not_run_is_refused_as_when_it_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    @pipeline(reads=ORDERS, writes=table("t"), output_mode="append")
    def p(orders: DataFrame) -> DataFrame:
        return orders.groupBy("shop").count()

    with pytest.raises(AnalysisException, match="append"):
        explain(p, spark, Settings(home=tmp_path, checkpoint=str(tmp_path)))


def test_each_output_by_name_has_a_way_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    def both(orders: DataFrame) -> dict[str, DataFrame]:
        return {"all": orders, "large": orders.where("amount > 10")}

    outputs = {"all": table("all_orders"), "large": topic("large")}
    declared: Pipeline = pipeline(reads=ORDERS, writes=outputs, name="p")(both)
    found = explain(declared, spark, Settings(home=tmp_path, checkpoint=str(tmp_path)))
    assert [it.outputs for it in found.flows] == [("all",), ("large",)]
    assert "decides for the topics" in delivery(outputs.values())
    assert delivery([table("t")]).startswith("the store's transaction")
    assert delivery([topic("t")]).startswith("the brokers' transactions")


@pytest.mark.parametrize(("kept", "grows"), [("forever", True), ("until the watermark", False)])
def test_operator_that_keeps_state_forever_is_marked(kept: str, grows: bool) -> None:
    described = {
        "title": "counts",
        "buckets": 16,
        "inputs": {"rows": ["key"]},
        "tables": {"held": "until the watermark is past them", "counts": kept},
    }
    assert operator_step(described, ()).grows == grows
