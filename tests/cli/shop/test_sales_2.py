"""The second version of sales: the rows of the first, with a column more."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from millstream.cli.shop import pipelines, sales_2
from tests.pipelines.conftest import spark  # noqa: F401 - the one session


def test_it_is_another_version_of_the_same_pipeline() -> None:
    assert sales_2.sales.name == pipelines.sales.name
    assert sales_2.sales.identity == "sales@2"


@pytest.mark.slow
def test_it_has_the_rows_of_the_first_version(spark: SparkSession) -> None:  # noqa: F811
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows = [("mug", amount, moment) for amount in (24, 12, 60)] + [("rug", 160, moment)]
    enriched = spark.createDataFrame(rows, "product string, amount long, at timestamp")
    first = pipelines.sales(enriched).collect()
    second = sales_2.sales(enriched)
    assert sorted(second.drop("largest").collect()) == sorted(first)
    assert {it.product: it.largest for it in second.collect()} == {"mug": 60, "rug": 160}
