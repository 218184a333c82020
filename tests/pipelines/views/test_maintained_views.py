"""Views of a pipeline on Spark, against recomputation, and a reader that reads its own writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from millstream.errors import NotReached
from millstream.pipelines import Pipeline, pipeline, topic, view, views
from millstream.pipelines.state.spark import ROCKSDB
from millstream.testing.streams.running import state_store
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.stores.conftest import Database, database, postgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["database", "postgres"]

pytestmark = pytest.mark.timeout(900)

Orders = dict[int, tuple[str, int]]


def shop(name: str) -> Pipeline:
    @pipeline(
        reads=topic(name, schema="id int, user string, amount long", table_key="id"),
        writes={"by_user": view(key="user"), "big_spenders": view(key="user")},
        name=f"shop-{name}",
    )
    def declared(orders: DataFrame) -> Mapping[str, DataFrame]:
        totals = orders.transform(views.aggregate, key="user", spent="sum(amount)", buckets=2)
        return {"by_user": totals, "big_spenders": totals.where("spent >= 10")}

    return declared


def recomputed(orders: Orders) -> dict[str, list[dict[str, Any]]]:
    totals = [
        {"user": user, "spent": sum(amount for who, amount in orders.values() if who == user)}
        for user in sorted({user for user, _ in orders.values()})
    ]
    return {"by_user": totals, "big_spenders": [it for it in totals if it["spent"] >= 10]}


class Customers:
    """Orders that are placed, changed and cancelled: a topic that is a table."""

    def __init__(self, topics: Topics) -> None:
        self.topic = topics.create(partitions=2)
        self.orders: Orders = {}
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})

    def order(self, changes: Mapping[int, tuple[str, int] | None]) -> list[Any]:
        """The delivery reports."""
        reports: list[Any] = []
        for number, order in changes.items():
            value = None
            if order is None:
                del self.orders[number]
            else:
                self.orders[number] = order
                value = json.dumps({"user": order[0], "amount": order[1]})
            self._producer.produce(
                self.topic, value, key=str(number), on_delivery=lambda _, it: reports.append(it)
            )
        assert self._producer.flush(60) == 0
        return reports


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """With the state store that operators of views need."""
    with state_store(spark, ROCKSDB):
        yield spark


def test_views_are_the_recomputation_at_every_stamp(
    session: SparkSession, topics: Topics, tmp_path: Path, database: Database
) -> None:
    where = {
        "broker": topics.bootstrap,
        "store": database.url,
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    customers = Customers(topics)
    declared = shop(customers.topic)
    rounds: list[dict[int, tuple[str, int] | None]] = [
        {1: ("ada", 6), 2: ("bob", 3), 3: ("ada", 6)},
        {2: ("bob", 20), 3: None},  # ada no longer qualifies
    ]
    for number, changes in enumerate(rounds):
        reports = customers.order(changes)
        if number:
            with (
                pytest.raises(NotReached, match="is asked for"),
                declared.read(reports, timeout=0, store=where["store"]),
            ):
                pass
        run_to_end(lambda: declared.start(session, once=True, **where))
        with declared.read(at_least=reports, store=where["store"]) as v:
            assert {name: v[name].range() for name in v} == recomputed(customers.orders)
            assert v.stamp.topic_ids.keys() == {customers.topic}
