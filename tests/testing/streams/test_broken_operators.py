"""The harness finds what is broken on Spark. How small failures become is for test_operators.py,
where a try takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from millstream.pipelines.pipeline import pipeline
from millstream.pipelines.spec import ONLY, table, topic
from millstream.testing.streams import Disorder, Source, StreamDiffers, check_stream, moments
from tests.testing.streams.broken import (
    CountsLate,
    ForgetsState,
    MinuteCounts,
    MissesTimer,
    count_in_file,
    minute_counts,
)
from tests.testing.streams.orders import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ORDERS = Source(
    st.fixed_dictionaries({"shop": st.sampled_from("ab"), "at": moments("4 minutes", "5 s")}),
    schema=SCHEMA,
    watermark=("at", "20 seconds"),
)
LATE = Disorder(late=0.3, late_by="1 minute")


def counted_by(operator: MinuteCounts) -> Callable[..., DataFrame]:
    def counts(orders: DataFrame) -> DataFrame:
        return minute_counts(orders, operator)

    return counts


def failure_of(function: Any, spark: SparkSession, **arguments: Any) -> StreamDiffers:
    with pytest.raises(StreamDiffers) as raised:
        check_stream(
            function, {"orders": ORDERS}, spark=spark, seed=1, rows=10, batches=4, **arguments
        )
    print(raised.value)
    return raised.value


def test_operator_that_is_right_passes(spark: SparkSession) -> None:
    function = counted_by(MinuteCounts())
    outcomes = check_stream(function, {"orders": ORDERS}, spark=spark, seed=1, disorder=LATE)
    assert all(it.rows() for it in outcomes)


def test_late_row_that_is_counted_is_found(spark: SparkSession) -> None:
    error = failure_of(counted_by(CountsLate()), spark, disorder=LATE)
    assert any(it.is_late for it in error.failure.case.arrivals)
    assert "late({" in str(error)


def test_state_that_is_lost_at_a_restart_is_found(spark: SparkSession) -> None:
    error = failure_of(counted_by(ForgetsState()), spark)
    _, _, faults = error.failure.case.size
    assert faults >= 1, "without one, nothing is lost"


def test_timer_that_is_missed_is_found(spark: SparkSession) -> None:
    error = failure_of(counted_by(MissesTimer()), spark)
    assert not error.failure.differences[ONLY].only_stream


def test_batch_that_is_counted_twice_is_found(spark: SparkSession, tmp_path: Path) -> None:
    def counts(orders: DataFrame) -> DataFrame:
        return count_in_file(orders, tmp_path)

    error = failure_of(counts, spark, key="shop")
    _, _, faults = error.failure.case.size
    assert faults >= 1, "without one, nothing is repeated"


def test_batch_that_is_other_when_repeated_is_found(spark: SparkSession) -> None:
    """Its final table is right; a sink that has one half of two different batches is not."""

    @pipeline(
        reads=topic("orders", schema=SCHEMA, watermark=("at", "20 seconds")),
        writes=table("orders", key=("shop", "at")),
    )
    def tossed(orders: DataFrame) -> DataFrame:
        from pyspark.sql.functions import rand

        return orders.withColumn("_kind", rand())

    error = failure_of(tossed, spark)
    assert not error.failure.differences
    assert error.failure.changed
    assert "had other rows when it was repeated" in str(error)


def test_sink_that_appends_what_is_repeated_is_found(spark: SparkSession) -> None:
    error = failure_of(lambda orders: orders, spark, delivery="at least once")
    assert error.failure.case.size[2] >= 1
