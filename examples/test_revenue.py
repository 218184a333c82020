"""A test of your own pipeline: the stream equals the batch, whatever happens.

Run it with `pytest examples/test_revenue.py`; the fixture `millstream_spark` comes with the
package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from millstream.pipelines import pipeline, table, topic
from millstream.testing.streams import Disorder, StreamTrial, check_stream, late, moments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pipeline(
    reads=topic(
        "orders",
        schema="shop string, amount double, at timestamp",
        watermark=("at", "1 minute"),
    ),
    writes=table("revenue"),
)
def revenue(orders: DataFrame) -> DataFrame:
    from pyspark.sql.functions import col, sum, window

    minutes = orders.groupBy("shop", window("at", "1 minute")).agg(sum("amount").alias("total"))
    return minutes.select("shop", col("window.start").alias("minute"), "total")


an_order = st.fixed_dictionaries(
    {
        "shop": st.sampled_from(["north", "south"]),
        "amount": st.integers(0, 1000).map(float),
        "at": moments("10 minutes"),
    }
)


def test_revenue_is_the_same_however_orders_come(millstream_spark: SparkSession) -> None:
    """Out of order, in arbitrary micro-batches, while the query restarts and crashes."""
    check_stream(revenue, {"orders": an_order}, spark=millstream_spark)


def test_orders_that_come_too_late_do_not_count(millstream_spark: SparkSession) -> None:
    """One minute behind the watermark, all windows of an order are closed."""
    too_late = Disorder(late=0.2, late_by="1 minute")
    check_stream(revenue, {"orders": an_order}, disorder=too_late, spark=millstream_spark)


def test_minute_is_emitted_once_when_it_is_over(millstream_spark: SparkSession) -> None:
    """One scenario by hand."""
    with StreamTrial(revenue, spark=millstream_spark) as trial:
        trial.batch(orders=[{"shop": "north", "amount": 5.0, "at": "2026-01-01 10:00:01"}])
        trial.batch(
            orders=[{"shop": "north", "amount": 7.0, "at": "2026-01-01 10:00:59"}],
            crash="after sink",
        )
        assert trial.results() == []
        trial.advance_watermark("2026-01-01 10:01:00")
        (minute,) = trial.results()
        assert minute["total"] == 12.0
        trial.batch(orders=[late({"shop": "north", "amount": 9.0, "at": "2026-01-01 10:00:30"})])
        trial.check()
