"""Analytics through the harness: any cuts, any faults, rows late by a hair."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from millstream.pipelines.analytics import (
    compare,
    count_distinct,
    deduplicate,
    flag_anomalies,
    heavy_hitters,
    percentiles,
    rolling,
    smooth,
    summarize_sessions,
    top_k,
)
from millstream.pipelines.pipeline import Pipeline, pipeline
from millstream.pipelines.spec import table, topic
from millstream.testing.streams import Disorder, check_stream, moments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COLUMNS = "shop string, item string, at timestamp, amount double, _offset long"
ORDER = st.fixed_dictionaries(
    {
        "shop": st.sampled_from(["a", "b"]),
        "item": st.sampled_from(["x", "y", "z", None]),
        "at": moments("4 minutes", "5 seconds"),
        "amount": st.one_of(st.integers(0, 80).map(lambda it: it / 8), st.none()),
    }
)


def pipeline_of(**outputs: Callable[[DataFrame], DataFrame]) -> Pipeline:
    """Several results of the same rows, by name: one query, one read."""

    def results(orders: DataFrame) -> dict[str, DataFrame]:
        return {name: orders.transform(function) for name, function in outputs.items()}

    return pipeline(
        reads=topic("orders", schema=COLUMNS, watermark=("at", "10 seconds")),
        writes={name: table(name) for name in outputs},
    )(results)


def check(checked: Pipeline, spark: SparkSession, **rest: Any) -> None:
    arguments = {"seed": 1, "examples": 1, "rows": 20, "batches": 4} | rest
    (outcome,) = check_stream(checked, {"orders": ORDER}, spark=spark, **arguments)
    assert all(map(outcome.rows, checked.writes))
    assert outcome.dropped_by_spark == 0


def minute_is_over(row: Any, watermark: datetime) -> bool:
    return bool(row["at"].replace(second=0) + timedelta(minutes=1) <= watermark)


OF_WINDOWS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "distinct": lambda it: count_distinct(it, "1 minute", key="shop", time="at", of="item"),
    "middle": lambda it: percentiles(it, "1 minute", key="shop", time="at", of="amount", at=(0.5,)),
    "top": lambda it: top_k(it, "1 minute", key="item", time="at", k=2, by="sum(amount)"),
    "compared": lambda it: compare(it, "1 minute", key="shop", time="at", n="count(*)"),
    "frequent": lambda it: top_k(it, "1 minute", key="item", time="at", k=4, how="approx"),
    "heavy": lambda it: heavy_hitters(
        it, "1 minute", key="item", time="at", by="amount", k=2, buckets=2
    ),
}


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_aggregations_of_windows(spark: SparkSession, name: str) -> None:
    checked = pipeline_of(**{name: OF_WINDOWS[name]})
    check(checked, spark, disorder=Disorder(late=0.3), late_when=minute_is_over)


def test_rolling_intervals_and_sessions(spark: SparkSession) -> None:
    """What is late is late for certain: on the edge, a session that is over cannot be joined."""
    checked = pipeline_of(
        panes=lambda it: rolling(
            it, "1 minute", key="shop", time="at", every="20 seconds", n="count(*)"
        ),
        sessions=lambda it: summarize_sessions(
            it, "15 seconds", key="shop", time="at", first="first(item)"
        ),
    )
    check(checked, spark, disorder=Disorder(late=0.2, late_by="20 seconds"))


def test_results_per_event(spark: SparkSession) -> None:
    rules: dict[str, Any] = {"allowed_lateness": "20 seconds", "buckets": 2}
    checked = pipeline_of(
        rolling=lambda it: rolling(
            it.drop("_watermark"),
            "1 minute",
            key="shop",
            time="at",
            n="count(*)",
            r="rate(*)",
            emit="final",
            **rules,
        ),
        anomalies=lambda it: flag_anomalies(
            it.drop("_watermark"),
            "amount",
            key="shop",
            time="at",
            over="1 minute",
            min_count=2,
            emit="final",
            **rules,
        ),
        smooth=lambda it: smooth(
            it.drop("_watermark"),
            "amount",
            key="shop",
            time="at",
            half_life="20 seconds",
            emit="final",
            **rules,
        ),
    )
    check(checked, spark, disorder=Disorder(late=0.4), late_when="20 seconds")


def test_copies_are_left_out_wherever_batches_are_cut(spark: SparkSession) -> None:
    orders = [
        {"item": str(number), "at": f"2026-01-01 00:0{number // 10}:{number % 10 * 6:02}"}
        for number in range(30)
    ]
    checked = pipeline_of(
        in_state=lambda it: deduplicate(
            it.drop("_watermark"), "30 seconds", key="item", time="at", how="state", buckets=2
        ).drop("_offset"),
        by_spark=lambda it: deduplicate(it, "10 seconds", key="item", time="at").drop(
            "_offset", "_watermark"
        ),
    )
    check_stream(
        checked,
        {"orders": orders},
        spark=spark,
        seed=1,
        examples=1,
        disorder=Disorder(duplicates=0.5),
    )
