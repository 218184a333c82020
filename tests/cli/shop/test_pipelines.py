"""The shop's pipelines as a user declares them, and what they make of a few rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.cli.shop import pipelines
from millstream.pipelines.running.loading import Target, load_pipelines
from millstream.pipelines.running.outputs import rows_of
from tests.pipelines.conftest import spark  # noqa: F401 - the one session

EARLY, LATE = (datetime(2026, 3, 1, 12, 0, it, tzinfo=UTC) for it in (3, 14))


def test_file_can_be_run_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setenv("PYTHONPATH", "")
    found = load_pipelines(Target(Path(pipelines.__file__)))
    assert [it.name for it in found] == ["enrich", "sales", "interest", "fraud", "customers"]
    assert list(found[0].writes) == ["enriched", "alerts"]


@pytest.mark.slow
def test_orders_are_counted_once_and_large_ones_reported(spark: SparkSession) -> None:  # noqa: F811
    rows = [
        (1, "ada", "mug", 2, EARLY),
        (1, "ada", "mug", 2, EARLY),
        (2, "bob", "armchair", 4, EARLY),
        (3, "eve", "mug", 1, LATE),
    ]
    orders = spark.createDataFrame(
        rows, "id long, customer string, product string, pieces int, at timestamp"
    )
    both = pipelines.enrich(orders)
    alerts = rows_of(both, "alerts").collect()
    assert [(it.customer, it.amount) for it in alerts] == [("bob", 1920)]
    sold = pipelines.sales(rows_of(both, "enriched")).collect()
    assert {(it.since.second, it.product, it.orders, it.revenue) for it in sold} == {
        (0, "mug", 1, 24),
        (0, "armchair", 1, 1920),
        (10, "mug", 1, 12),
    }


@pytest.mark.slow
def test_views_are_counted_by_window_and_product(spark: SparkSession) -> None:  # noqa: F811
    rows = [("mug", EARLY), ("mug", EARLY), ("mug", LATE), ("rug", LATE)]
    seen = pipelines.interest(spark.createDataFrame(rows, "product string, at timestamp"))
    assert {(it.since.second, it.product, it.views) for it in seen.collect()} == {
        (0, "mug", 2),
        (10, "mug", 1),
        (10, "rug", 1),
    }


@pytest.mark.slow
def test_small_orders_and_then_a_large_one_are_a_fraud(spark: SparkSession) -> None:  # noqa: F811
    amounts = [("ada", 5), ("bob", 5), ("ada", 6), ("ada", 7), ("bob", 2000), ("ada", 1950)]
    rows = [(number, *it, EARLY, number) for number, it in enumerate(amounts)]
    enriched = spark.createDataFrame(
        rows, "id long, customer string, amount long, at timestamp, _offset long"
    )
    (found,) = pipelines.fraud(enriched).collect()
    assert (found.customer, found.id, found.tries, found.amount) == ("ada", 5, 3, 1950)


@pytest.mark.slow
def test_spending_of_customers_is_summed(spark: SparkSession) -> None:  # noqa: F811
    rows = [(f"c{number % 7}", 10 * number) for number in range(14)]
    made = pipelines.customers(spark.createDataFrame(rows, "customer string, amount long"))
    spent = {it.customer: (it.orders, it.spent) for it in made.collect()}
    assert len(spent) == 7
    assert spent["c6"] == (2, 60 + 130)
