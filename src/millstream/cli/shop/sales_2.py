"""Version 2 of the shop's sales: with the largest order of each window and product.

`millstream demo` deploys it beside version 1, compares both, and moves the readers to it.

    millstream deploy sales_2.py:sales
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from millstream.cli.shop.pipelines import WINDOW, enriched
from millstream.pipelines import pipeline, table


@pipeline(reads=enriched, writes=table("sales", key=("since", "product")), version=2)
def sales(enriched: DataFrame) -> DataFrame:
    """What was sold: orders, revenue and the largest amount, by window and product."""
    by_window = enriched.groupBy(F.window("at", WINDOW), "product").agg(
        F.count("*").alias("orders"),
        F.sum("amount").alias("revenue"),
        F.max("amount").alias("largest"),
    )
    return by_window.selectExpr("window.start AS since", "product", "orders", "revenue", "largest")
