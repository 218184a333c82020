"""A decorated function: it is called as before, and knows its declaration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
