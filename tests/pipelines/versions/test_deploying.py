"""Deploying versions: physical tables, views for readers, and pipelines that ran before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from millstream.errors import ConfigError, WriterFenced
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.deploying import (
    deploy_version,
    describe,
    find_deployed,
    register,
    start_topic,
)
from tests.pipelines.versions.conftest import Scene, version_of


def test_version_in_force_is_read_by_the_name_of_the_pipeline(scene: Scene) -> None:
    scene.deploy("1")
    scene.write("1", 0, 5, [("monday", 1.0)])
    scene.deploy("2")
    scene.write("2", 0, 5, [("monday", 2.0)])
    assert scene.read() == [("monday", 1.0)]
    assert scene.read("SELECT total FROM revenue__v2") == [(2.0,)]


def test_table_of_a_pipeline_that_ran_before_becomes_that_of_its_version(scene: Scene) -> None:
    scene.write("1", 0, 5, [("monday", 1.0)], table="revenue")
    document = scene.deploy("2")
    assert (document.in_force, list(document.versions)) == ("1", ["1", "2"])
    assert scene.read() == [("monday", 1.0)]
    with pytest.raises(WriterFenced):  # the run that still writes to `revenue`
        scene.write("1", 1, 6, [("monday", 9.0)], table="revenue__v1")
    with scene.database.open() as store:  # a new run of version 1
        scene.store = store
        scene.write("1", 1, 6, [("tuesday", 3.0)])
    assert scene.read() == [("monday", 1.0), ("tuesday", 3.0)]


def test_name_of_a_foreign_table_is_refused(scene: Scene) -> None:
    scene.store.write_arrow([], 0, "another")
    scene.database.run("CREATE TABLE revenue (day TEXT)")
    with pytest.raises(ConfigError, match="a table revenue that no version of revenue wrote"):
        scene.deploy("1")
    assert scene.catalog.find("revenue") is None


def test_query_that_wrote_topics_before_is_in_force(scene: Scene) -> None:
    version = version_of("2", topics=("alerts",), tables=False)
    document = register(scene.catalog, "revenue", version, ["revenue", "other"])
    assert (document.in_force, document.get("1").topics) == ("1", ("alerts",))
    assert document.get("1").transactional_id == "millstream-revenue"


def test_start_of_a_version_replaces_that_of_its_topics_but_not_of_tables() -> None:
    orders = topic("orders")
    assert start_topic(orders, None).start_at == "earliest"
    assert start_topic(orders, "latest").start_at == "latest"
    assert start_topic(orders, '{"orders": {"0": 7}}').start_at == {0: 7}
    assert start_topic(orders, '{"users": {"0": 7}}').start_at == "earliest"
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    assert start_topic(orders, moment.isoformat()).start_at == moment
    users = topic("users", schema="name string", table_key="user")
    assert start_topic(users, "latest").start_at == "earliest"


@pipeline(reads=topic("orders"), writes=table("revenue", key="day"), version="2")
def revenue(orders):  # type: ignore[no-untyped-def]
    return orders


def test_start_of_a_deployed_pipeline_finds_its_physical_names(tmp_path: Path) -> None:
    settings = Settings(tmp_path, broker="127.0.0.1:1", checkpoint=str(tmp_path / "checkpoints"))
    assert find_deployed(revenue, settings) is None
    assert not (tmp_path / "store.db").exists()
    document = deploy_version(revenue, settings, "latest")
    assert document.get("2") == describe(revenue, f"{tmp_path}/checkpoints/revenue@2", "latest")
    deployed = find_deployed(revenue, settings)
    assert deployed is not None
    (output,) = deployed.pipeline.writes.values()
    (read,) = deployed.pipeline.reads.values()
    assert (output.name, read.start_at) == ("revenue__v2", "latest")
    assert read.options["haltFile"] == str(tmp_path / "halts" / "revenue@2.json")
    assert deployed.roles is None
    with open_catalog(settings.store_url) as catalog:
        catalog.note_caught_up("revenue", "2")
    again = find_deployed(revenue, settings)
    assert again is not None
    assert again.document.get("2").is_caught_up
    again.publish({"lookup", "enrich"})
    kept = deploy_version(revenue, settings)  # what is known of it stays
    assert kept.get("2").by_arrival == ("enrich", "lookup")
    third = revenue.variant("revenue", version=3, writes=table("other", key="day"))
    with pytest.raises(ConfigError, match="version 3 of revenue is not deployed"):
        find_deployed(third, settings)
