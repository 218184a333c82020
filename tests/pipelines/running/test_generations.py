"""Pipelines whose views change: which generation runs, what is refused, and a change on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic, view, views
from millstream.pipelines.running.generations import (
    choose_generation,
    only_outputs,
    refuse_lost_records,
)
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import ONLY
from millstream.pipelines.stores import TableSpec, open_store
from millstream.views import open_views
from millstream.views.generations import generation_table
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.views.test_maintained_views import Customers, recomputed, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["session"]


def shop(outputs: Sequence[str], name: str = "orders", **writes: Any) -> Pipeline:
    @pipeline(
        reads=topic(name, schema="id int, user string, amount long", table_key="id"),
        writes={it: view(key="user") for it in outputs} | writes,
        name=f"shop-{name}",
    )
    def declared(orders: DataFrame) -> Mapping[str, DataFrame]:
        totals = orders.transform(views.aggregate, key="user", spent="sum(amount)", buckets=2)
        made = {"by_user": totals, "big_spenders": totals.where("spent >= 10")}
        return {it: made[it] for it in outputs}

    return declared


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, store=f"sqlite:///{tmp_path}/store.db")


def write(settings: Settings, declared: Any, offset: int) -> None:
    """One batch of the pipeline, as its query would write it."""
    with open_store(settings.store_url) as store:
        rows = pa.table({"user": ["ada"], "spent": [offset]})
        specs = [
            (name, TableSpec(generation_table(it.name, declared.generation), it.key), 5)
            for name, it in declared.views.items()
        ]
        for _, spec, _ in specs:
            store.prepare(rows.schema, spec)
        store.list_views(declared.public_name, specs, writer=declared.identity)
        offsets = f'{{"orders": {{"0": {offset}}}}}'
        outputs = [(rows, spec) for _, spec, _ in specs]
        store.write_arrow(outputs, offset, declared.identity, offsets)


def test_added_view_is_built_beside_the_earlier_ones(settings: Settings) -> None:
    first = choose_generation(shop(["by_user"]), settings)
    assert (first.pipeline.identity, first.earlier) == ("shop-orders", None)
    write(settings, first.pipeline, 5)
    both = shop(["by_user", "big_spenders"])
    chosen = choose_generation(both, settings)
    assert chosen.earlier is not None
    assert (chosen.pipeline.identity, chosen.earlier.identity) == ("shop-orders+2", "shop-orders")
    assert list(chosen.earlier.writes) == ["by_user"]
    assert (chosen.pipeline.group_id, chosen.pipeline.public_name) == (
        "shop-orders+2",
        "shop-orders",
    )
    write(settings, chosen.pipeline, 3)
    assert choose_generation(both, settings).pipeline.identity == "shop-orders+2"  # it goes on
    write(settings, chosen.pipeline, 5)  # and has caught up
    again = choose_generation(both, settings)
    assert (again.pipeline.identity, again.earlier) == ("shop-orders+2", None)
    with open_views(settings.store_url, "shop-orders") as opened, opened.read() as v:
        assert sorted(v) == ["big_spenders", "by_user"]


def test_restart_of_what_readers_read_leaves_the_build_alone(settings: Settings) -> None:
    write(settings, shop(["by_user"]), 5)
    both = shop(["by_user", "big_spenders"])
    write(settings, choose_generation(both, settings).pipeline, 3)
    assert choose_generation(shop(["by_user"]), settings).pipeline.identity == "shop-orders"
    write(settings, choose_generation(both, settings).pipeline, 5)
    with open_views(settings.store_url, "shop-orders") as opened, opened.read() as v:
        assert sorted(v) == ["big_spenders", "by_user"]


def test_view_is_taken_from_readers_only_if_that_is_meant(settings: Settings) -> None:
    write(settings, shop(["by_user", "big_spenders"]), 5)
    fewer = shop(["by_user"])
    with pytest.raises(ConfigError, match="big_spenders: readers of shop-orders have"):
        choose_generation(fewer, settings)
    chosen = choose_generation(fewer, settings, remove_views=True)
    assert (chosen.pipeline.identity, chosen.earlier) == ("shop-orders+2", None)
    write(settings, chosen.pipeline, 4)
    assert choose_generation(fewer, settings).pipeline.generation == 2  # it was meant, and goes on
    with open_views(settings.store_url, "shop-orders") as opened:
        with opened.read() as v:
            assert sorted(v) == ["big_spenders", "by_user"]
        write(settings, chosen.pipeline, 5)
        with opened.read() as v:
            assert list(v) == ["by_user"]


def test_pipeline_with_other_outputs_has_one_generation(settings: Settings) -> None:
    write(settings, shop(["by_user"]), 5)
    mixed = shop(["by_user", "big_spenders"], log=table("log"))
    assert choose_generation(mixed, settings).pipeline is mixed


def test_some_outputs_of_a_function() -> None:
    declared = shop(["by_user", "big_spenders"])
    made = {"by_user": 1, "big_spenders": 2}
    replaced = only_outputs(_returning(declared, made), ["big_spenders"])
    assert replaced(orders=None) == {"big_spenders": 2}
    assert list(replaced.writes) == ["big_spenders"]
    one = _returning(declared.variant("one", writes=view("v", key="user")), "frame")
    assert only_outputs(one, [ONLY])(orders=None) == "frame"


def _returning(declared: Pipeline, made: object) -> Pipeline:
    def function(orders: object) -> object:
        return made

    return replace(declared, function=function)


def test_build_without_the_first_records_is_refused(topics: Topics) -> None:
    customers = Customers(topics)
    (report,) = customers.order({1: ("ada", 6)})
    place = (customers.topic, report.partition())
    first = shop(["by_user"], customers.topic)
    second = replace(first, generation=2)
    given = {"subscribe": customers.topic, "kafka.bootstrap.servers": topics.bootstrap}
    refuse_lost_records(second, {"orders": given}, {})
    topics.delete_records(customers.topic, 1, partition=report.partition())
    with pytest.raises(ConfigError, match="has lost the records before offset 1"):
        refuse_lost_records(second, {"orders": given}, {})
    refuse_lost_records(first, {"orders": given}, {})
    refuse_lost_records(second, {"orders": given}, {"orders": {place: 1}})  # where it began


@pytest.mark.timeout(900)
def test_added_view_appears_while_the_others_are_maintained(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    customers = Customers(topics)
    customers.order({1: ("ada", 6), 2: ("bob", 3), 3: ("ada", 6)})
    where = {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }
    before = shop(["by_user"], customers.topic)
    run_to_end(lambda: before.start(session, once=True, **where))
    after = shop(["by_user", "big_spenders"], customers.topic)
    query = after.start(session, **where)
    (earlier,) = (it for it in session.streams.active if it.name == before.identity)
    try:
        number = 3
        while True:
            number += 1
            reports = customers.order({number: ("bob", number), 1: ("ada", number % 7)})
            with after.read(reports, store=where["store"], timeout=300) as v:
                assert v["by_user"].range() == recomputed(customers.orders)["by_user"]
                if "big_spenders" in set(v):
                    break
        reports = customers.order({number: None})
        with after.read(reports, store=where["store"], timeout=300) as v:
            assert {it: v[it].range() for it in v} == recomputed(customers.orders)
        assert earlier.awaitTermination(PATIENCE_SECONDS)  # type: ignore[arg-type]
    finally:
        query.stop()
    with pytest.raises(ConfigError, match="big_spenders: readers"):
        before.start(session, once=True, **where)
