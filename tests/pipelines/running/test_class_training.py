"""The pipelines of the training run, over rows; `test_class_archive` runs them as streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millstream.pipelines.running.class_training import enrich, sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_order_is_counted_and_priced(spark: SparkSession) -> None:
    rows = [(1, "mug", 2, AT), (1, "mug", 2, AT), (2, "mug", 3, AT)]
    orders = spark.createDataFrame(rows, "id long, product string, amount long, at timestamp")
    [window] = sales(orders).collect()
    assert (window["product"], window["orders"], window["amount"]) == ("mug", 3, 7)
    priced = {row["priced"]["id"]: row["priced"]["total"] for row in enrich(orders).collect()}
    assert priced == {1: 24, 2: 36}
