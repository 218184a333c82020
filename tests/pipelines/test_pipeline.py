"""A decorated function: it is called as before, and knows its declaration."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic

ORDERS = topic("orders", schema="id long, amount double")
USERS = topic("users", schema="id long, name string")


def test_pipeline_is_called_as_the_function_it_was() -> None:
    @pipeline(reads=ORDERS, writes=table("doubled"))
    def twice(orders: int, factor: int = 2) -> int:
        """Doubles."""
        return orders * factor

    assert isinstance(twice, Pipeline)
    assert (twice(21), twice(orders=5), twice(5, factor=3)) == (42, 10, 15)
    assert (twice.name, twice.__doc__, twice.group_id) == ("twice", "Doubles.", "twice")
    assert twice.reads == {"orders": ORDERS}


def test_pipeline_takes_several_inputs_by_parameter() -> None:
    @pipeline(
        reads={"users": USERS, "orders": ORDERS},
        writes=topic("named", key="id"),
        name="naming",
        version=3,
        group="names",
    )
    def join(orders: Any, users: Any) -> Any:
        return orders, users

    assert (join.name, join.version, join.group_id) == ("naming", "3", "names")
    assert join(orders=1, users=2) == (1, 2)


def test_variant_differs_only_in_what_is_said() -> None:
    @pipeline(reads=ORDERS, writes=table("revenue", key="id"))
    def revenue(orders: Any) -> Any:
        return orders

    second = revenue.variant("revenue-2", version="2", writes=table("revenue_2", key="id"))
    assert (second.name, second.version, second.group_id) == ("revenue-2", "2", "revenue-2@2")
    assert [it.name for it in second.writes.values()] == ["revenue_2"]
    assert (second.reads, second.function) == (revenue.reads, revenue.function)
    assert revenue.name == "revenue"
    assert type(second) is Pipeline


def test_pipeline_has_the_place_of_its_definition() -> None:
    declared = pipeline(reads=ORDERS, writes=table("t"), name="t")(lambda orders: orders)
    assert declared.home == Path(__file__).parent


@pytest.mark.parametrize(
    ("start_at", "problem"),
    [
        (datetime(2026, 1, 31), "has no time zone"),
        (5, "it must be earliest, latest, a datetime or an offset"),
        ("latets", "it must be earliest"),
    ],
)
def test_batch_begins_at_places_that_a_topic_may_declare(start_at: Any, problem: str) -> None:
    """Refused before anything is asked: there is no session, and no broker."""
    spark: Any = None
    declared = pipeline(reads=ORDERS, writes=table("t"), name="p")(lambda orders: orders)
    with pytest.raises(ConfigError, match=f"pipeline p: start_at is .*{problem}"):
        declared.batch(spark, start_at=start_at)
