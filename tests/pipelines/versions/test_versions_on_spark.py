"""Versions of real pipelines, beside each other in one session: deployed, compared, switched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.launching import launch
from millstream.pipelines.running.runner import with_defaults
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.starting import start_query
from millstream.pipelines.versions.catalog import Catalog, open_catalog
from millstream.pipelines.versions.deploying import deploy_version
from millstream.pipelines.versions.differing import compare_versions
from millstream.pipelines.versions.removing import remove_version
from millstream.pipelines.versions.switching import switch_readers
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.conftest import Topics
from tests.pipelines.stores.conftest import Database
from tests.pipelines.writing.test_writer import read_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def settings(topics: Topics, database: Database, tmp_path: Path) -> Settings:
    given = Settings(home=tmp_path, broker=topics.bootstrap, store=database.url)
    return with_defaults(given)


@contextmanager
def running(spark: SparkSession, settings: Settings, *pipelines: Pipeline) -> Iterator[Catalog]:
    """The versions deployed and running, all caught up."""
    with ExitStack() as stack:
        for it in pipelines:
            deploy_version(it, settings)
            query = start_query(lambda it=it: launch(it, spark, settings))
            stack.callback(query.stop)
        catalog = stack.enter_context(open_catalog(settings.store_url))
        for it in pipelines:
            await_true(lambda it=it: is_caught_up(catalog, it))
        yield catalog


def is_caught_up(catalog: Catalog, pipeline: Pipeline) -> bool:
    document = catalog.find(pipeline.name)
    return document is not None and document.get(pipeline.version).is_caught_up


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.1)


def numbers(first: int, last: int) -> list[bytes]:
    return [json.dumps({"id": it}).encode() for it in range(first, last)]


def test_tables_of_versions_are_compared_and_readers_moved(
    spark: SparkSession, topics: Topics, settings: Settings, database: Database
) -> None:
    orders = topics.create()
    topics.fill(orders, numbers(0, 20))
    reads = topic(orders, schema="id long")
    declared: Any = pipeline(reads=reads, writes=table("doubles", key="id"), name=f"d-{orders}")
    one: Pipeline = declared(lambda frame: frame.selectExpr("id", "id * 2 as value"))
    two = replace(
        one,
        version="2",
        function=lambda frame: frame.selectExpr(
            "id", "case when id = 3 then 0 else id * 2 end as value"
        ),
    )
    with running(spark, settings, one, two) as catalog:
        topics.fill(orders, numbers(20, 30))
        found = compare_versions(catalog, settings, one.name, ("1", "2"))
        (doubles,) = found.tables
        assert (doubles.rows, doubles.differing, doubles.by_column) == ((30, 30), 1, {"value": 1})
        assert doubles.samples[0].key == {"id": 3}
        assert database.rows("SELECT value FROM doubles WHERE id = 3") == [(6,)]
        switch_readers(catalog, settings, one.name, "2")
        assert database.rows("SELECT value FROM doubles WHERE id = 3") == [(0,)]
        topics.fill(orders, numbers(30, 31))  # both go on after the halt
        for physical in ("doubles__v1", "doubles__v2"):
            statement = f"SELECT count(*) FROM {physical}"
            await_true(lambda statement=statement: database.rows(statement) == [(31,)])
        switch_readers(catalog, settings, one.name)
        assert database.rows("SELECT value FROM doubles WHERE id = 3") == [(6,)]
    with open_catalog(settings.store_url) as catalog:
        remove_version(catalog, settings, one.name, "2")
        assert catalog.read(lambda work: work.kind("doubles__v2")) is None
    assert not Path(f"{settings.checkpoint}/{two.identity}").exists()
    with running(spark, settings, two):  # again, from the beginning
        assert database.rows("SELECT count(*) FROM doubles__v2") == [(31,)]


def test_topic_has_each_record_of_one_version_across_switches(
    spark: SparkSession, topics: Topics, settings: Settings
) -> None:
    orders, results = topics.create(), topics.create()
    topics.fill(orders, numbers(0, 20))
    reads = topic(orders, schema="id long")
    declared: Any = pipeline(reads=reads, writes=topic(results), name=f"t-{orders}")
    one: Pipeline = declared(lambda frame: frame.selectExpr("concat('1:', id) as value"))
    two = replace(
        one, version="2", function=lambda frame: frame.selectExpr("concat('2:', id) as value")
    )

    def values(name: str) -> list[str]:
        return sorted(it.decode() for it in read_values(topics, name))

    with running(spark, settings, one, two) as catalog:
        assert values(results) == sorted(f"1:{it}" for it in range(20))
        assert values(f"{results}.v2") == sorted(f"2:{it}" for it in range(20))
        switch_readers(catalog, settings, one.name, "2")
        topics.fill(orders, numbers(20, 25))
        await_true(lambda: len(values(results)) == 25)
        switch_readers(catalog, settings, one.name)
        topics.fill(orders, numbers(25, 30))
        await_true(lambda: len(values(results)) == 30)
        (found,) = compare_versions(catalog, settings, one.name, ("1", "2"), samples=30).topics
        assert (found.rows, found.only) == ((30, 30), (30, 30))
        assert sorted(it.first["value"] for it in found.samples if it.first) == sorted(
            f"1:{it}" for it in range(30)
        )
    expected = [f"{'2' if 20 <= it < 25 else '1'}:{it}" for it in range(30)]
    assert values(results) == sorted(expected)


def test_topic_of_a_pipeline_that_ran_before_is_adopted(
    spark: SparkSession, topics: Topics, settings: Settings
) -> None:
    orders, results = topics.create(), topics.create()
    topics.fill(orders, numbers(0, 20))
    reads = topic(orders, schema="id long")
    declared: Any = pipeline(reads=reads, writes=topic(results), name=f"a-{orders}")
    one: Pipeline = declared(lambda frame: frame.selectExpr("concat('1:', id) as value"))
    two = replace(
        one, version="2", function=lambda frame: frame.selectExpr("concat('2:', id) as value")
    )
    plain = start_query(lambda: launch(one, spark, settings))
    await_true(lambda: len(read_values(topics, results)) == 20)
    plain.stop()
    with running(spark, settings, two, one) as catalog:
        document = catalog.find(one.name)
        assert document is not None
        assert document.in_force == "1"
        topics.fill(orders, numbers(20, 25))
        await_true(lambda: len(read_values(topics, results)) == 25)
        switch_readers(catalog, settings, one.name, "2")
        topics.fill(orders, numbers(25, 30))
        await_true(lambda: len(read_values(topics, results)) == 30)
    expected = [f"{'1' if it < 25 else '2'}:{it}".encode() for it in range(30)]
    assert sorted(read_values(topics, results)) == sorted(expected)


def read_values(topics: Topics, name: str) -> list[bytes]:
    return [it.value() for it in read_committed(topics.bootstrap, name)]
