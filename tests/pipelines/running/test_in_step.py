"""Pipelines in step with another one: common cuts under a load that never pauses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError, NotReached
from millstream.pipelines import pipeline, table, topic, view
from millstream.pipelines.reading.cuts import read_cut
from millstream.pipelines.running.in_step import InStep, cut_file, with_cuts
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.stores import Store, open_store
from millstream.views import open_views
from tests.views.conftest import Shop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def declared(name: str = "stock", reads: str = "orders", **options: Any) -> Any:
    @pipeline(
        reads=topic(reads, schema="id int", table_key="id"),
        writes=view("stock_by_user", key="user"),
        name=name,
        in_step_with="shop",
        **options,
    )
    def made(orders: DataFrame) -> DataFrame:
        return orders

    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, store=f"sqlite:///{tmp_path}/store.db")


class Queries:
    """A leader, and a follower whose planner reads the cut before each of its batches."""

    def __init__(self, store: Store, settings: Settings, *, is_in_step: bool = True) -> None:
        url = settings.store_url
        self.leader = Shop(store, url).prepare()
        self.follower = Shop(store, url, "stock", prefix="stock_").prepare()
        self.settings = settings
        self.in_step = InStep(declared(), settings) if is_in_step else None
        if self.in_step is not None:
            self.in_step.begin()

    def follow(self, log_end: int, most: int) -> None:
        """A batch of the follower: up to the cut, and no more than so many records."""
        ends = {("orders", 0): log_end}
        start = {("orders", 0): self.follower.offset}
        cut = read_cut(cut_file(declared(), self.settings))
        if cut is not None:
            ends = cut.limit(start, ends)
        count = min(ends["orders", 0] - self.follower.offset, most)
        if count > 0:
            self.follower.spend(count, ada=1)
        if self.in_step is not None:
            self.in_step.step()


@pytest.mark.parametrize("is_in_step", [True, False])
def test_common_cut_under_a_load_that_never_pauses(settings: Settings, is_in_step: bool) -> None:
    rng = random.Random(7)
    reads = missed = 0
    with (
        open_store(settings.store_url) as store,
        open_views(settings.store_url, "shop", "stock") as views,
    ):
        queries = Queries(store, settings, is_in_step=is_in_step)
        log_end = 0
        for _ in range(60):
            log_end += rng.randint(3, 9)
            queries.leader.spend(log_end - rng.randint(0, 2) - queries.leader.offset, ada=1)
            if rng.random() < 0.6:
                queries.follow(log_end, most=50)
            if queries.follower.batch_id < 1:
                continue
            try:
                with views.read(timeout=0) as v:
                    (offset,) = v.stamp.offsets.values()
                    assert offset > log_end - 60 or not is_in_step
                reads += 1
            except NotReached:
                missed += 1
    if is_in_step:
        assert (reads > 40, missed) == (True, 0)
    else:
        assert missed > 0  # what the pipelines would do by themselves


def test_cut_stays_until_it_is_reached_in_all_batches(settings: Settings) -> None:
    with open_store(settings.store_url) as store:
        queries = Queries(store, settings)
        file = cut_file(declared(), settings)
        assert json.loads(file.read_text()) == {"cut": None}  # the leader has written nothing
        queries.leader.spend(30, ada=1)
        queries.follow(40, most=10)
        for _ in range(3):
            queries.leader.spend(5, ada=1)
            assert json.loads(file.read_text()) == {"cut": {"orders": {"0": 30}}}
            queries.follow(60, most=10)
        assert queries.follower.offset == 30
        assert json.loads(file.read_text()) == {"cut": {"orders": {"0": 45}}}


def test_restart_goes_on_from_what_is_written(settings: Settings) -> None:
    with open_store(settings.store_url) as store:
        queries = Queries(store, settings)
        queries.leader.spend(30, ada=1)
        queries.leader.spend(30, ada=1)
        queries.follow(0, most=0)
        queries.follow(70, most=100)
        assert queries.follower.offset == 60
        queries.leader.spend(5, ada=1)
        again = InStep(declared(), settings)  # the process was killed before it wrote the cut
        again.begin()
        file = cut_file(declared(), settings)
        assert json.loads(file.read_text()) == {"cut": {"orders": {"0": 65}}}


def test_topic_that_the_leader_does_not_read_is_refused(settings: Settings) -> None:
    with open_store(settings.store_url) as store:
        Shop(store, settings.store_url).prepare().spend(3, ada=1)
        with pytest.raises(ConfigError, match="shop, which does not read users"):
            InStep(declared(reads="users"), settings).begin()


def test_pipeline_without_views_is_refused(settings: Settings) -> None:
    plain = declared().variant("plain", writes=table("t"))
    with pytest.raises(ConfigError, match="has no views"):
        with_cuts(plain, settings)


def test_inputs_have_the_file_of_the_cut(settings: Settings) -> None:
    read = with_cuts(declared(), settings).reads["orders"]
    assert read.options["haltFile"] == str(settings.home / "cuts" / "stock.json")
