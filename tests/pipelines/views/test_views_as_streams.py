"""Views on Spark through the harness: any cuts, any faults, and rows that leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from pyspark.sql.functions import col

from millstream.pipelines import views
from millstream.pipelines.joins import changes, table_join
from millstream.testing.streams import Source, check_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ORDERS = Source(
    st.fixed_dictionaries(
        {
            "id": st.integers(1, 4),
            "user": st.sampled_from(["ada", "bob"]),
            "amount": st.integers(1, 5),
            "gone": st.booleans(),
        }
    ),
    schema="id int, user string, amount long, gone boolean, _offset long",
)


def current(orders: DataFrame) -> DataFrame:
    """The table of orders: the last version of each, unless it was deleted."""
    ordered = orders.withColumn("version", col("_offset"))
    return (
        ordered.drop("_offset")
        .transform(changes, key="id", sequence="version", delete="gone")
        .drop("version")
    )


def big_spenders(orders: DataFrame) -> DataFrame:
    """A filter behind an aggregate: users who no longer qualify must leave."""
    totals = current(orders).transform(
        views.aggregate, key="user", spent="sum(amount)", most="max(amount)", n="count(*)"
    )
    return totals.where("spent > 4 and n < 4")


def leaders(orders: DataFrame) -> DataFrame:
    totals = current(orders).transform(views.aggregate, key="user", spent="sum(amount)")
    return totals.transform(views.top, 1, by="spent")


def buyers(orders: DataFrame) -> DataFrame:
    return current(orders).transform(views.distinct, key="user")


def pairs(orders: DataFrame) -> DataFrame:
    """An aggregate of a join."""
    mine = current(orders)
    theirs = current(orders).select(col("id").alias("other"), "user", "_weight")
    joined = mine.transform(table_join, theirs, "user")
    return joined.transform(views.aggregate, key="user", n="count(distinct other)", m="count(*)")


@pytest.mark.parametrize("function", [big_spenders, leaders, buyers, pairs])
def test_view_of_a_stream_is_that_of_its_history(spark: SparkSession, function: Any) -> None:
    outcomes = check_stream(
        function, {"orders": ORDERS}, spark=spark, seed=3, rows=14, examples=1, batches=4
    )
    assert all(it.rows() for it in outcomes)
