"""Moving readers between versions, in one transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions.switching import (
    Behind,
    Place,
    find_document,
    swap_views,
    switch_readers,
)
from tests.pipelines.versions.conftest import Scene


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, broker="127.0.0.1:1")


@pytest.fixture
def two(scene: Scene) -> Scene:
    """Two versions at offset 10."""
    for version, total in (("1", 1.0), ("2", 2.0)):
        scene.deploy(version)
        scene.write(version, 0, 10, [("monday", total)])
        scene.caught_up(version)
    return scene


def test_switch_and_rollback_move_readers(two: Scene, settings: Settings) -> None:
    switched = switch_readers(two.catalog, settings, "revenue", "2")
    assert (switched.in_force, switched.previous, switched.number) == ("2", "1", 1)
    assert two.read() == [("monday", 2.0)]
    two.write("1", 1, 12, [("tuesday", 1.0)])  # it runs on
    back = switch_readers(two.catalog, settings, "revenue")
    assert (back.in_force, back.previous, back.number) == ("1", "2", 2)
    assert two.read() == [("monday", 1.0), ("tuesday", 1.0)]


def test_version_that_is_behind_is_not_switched_to(two: Scene) -> None:
    two.write("1", 1, 15, [("monday", 5.0)])
    document = two.document()
    with pytest.raises(Behind, match="is 5 records behind version 1"):
        two.catalog.run(lambda work: swap_views(work, document, "2", None), "switch")
    assert two.read() == [("monday", 5.0)]
    two.catalog.run(lambda work: swap_views(work, document, "2", None, allow_behind=True), "switch")
    assert two.read() == [("monday", 2.0)]


def test_second_of_two_operators_changes_nothing(two: Scene) -> None:
    document = two.document()
    two.catalog.run(lambda work: swap_views(work, document, "2", None), "switch")
    with pytest.raises(MillstreamError, match="switched by another process meanwhile"):
        two.catalog.run(lambda work: swap_views(work, document, "2", None), "switch")
    assert two.document().number == 1


def test_versions_with_topics_are_switched_only_at_the_cut(scene: Scene) -> None:
    for version in ("1", "2"):
        scene.deploy(version, topics=("alerts",))
        scene.write(version, 0, 10, [("monday", float(version))])
        scene.caught_up(version)
    document, cut = scene.document(), {("orders", 0): 10}
    scene.write("1", 1, 11, [("monday", 7.0)])
    with pytest.raises(ConfigError, match="did not stay at the cut"):
        scene.catalog.run(lambda work: swap_views(work, document, "2", Place(cut)), "switch")
    assert scene.read() == [("monday", 7.0)]
    scene.write("2", 1, 11, [("monday", 8.0)])
    moved = Place({("orders", 0): 11}, {("alerts", 0): 5}, completed=1)
    switched = scene.catalog.run(lambda work: swap_views(work, document, "2", moved), "switch")
    assert scene.read() == [("monday", 8.0)]
    assert (switched.in_force, switched.cut) == ("2", {"orders": {"0": 11}})
    assert switched.spans[-1].begins == {"alerts": {"0": 5}}


def test_batch_without_new_records_after_the_last_completed_one_prevents_a_switch(
    scene: Scene,
) -> None:
    for version in ("1", "2"):
        scene.deploy(version, topics=("alerts",))
        scene.write(version, 0, 10, [("monday", float(version))])
        scene.caught_up(version)
    document = scene.document()
    place = Place({("orders", 0): 10}, completed=0)
    scene.write("1", 1, 10, [("monday", 7.0)])  # a window ended
    with pytest.raises(ConfigError, match="did not stay at the cut"):
        scene.catalog.run(lambda work: swap_views(work, document, "2", place), "switch")
    assert scene.read() == [("monday", 7.0)]


def test_table_that_was_dropped_is_not_shown(two: Scene, settings: Settings) -> None:
    two.database.run("DROP TABLE revenue__v2")
    with pytest.raises(ConfigError, match="table revenue__v2 of version 2 was dropped"):
        switch_readers(two.catalog, settings, "revenue", "2")
    assert two.read() == [("monday", 1.0)]


def test_pipeline_without_versions_is_refused(scene: Scene) -> None:
    scene.deploy("1")
    with pytest.raises(ConfigError, match="no version of alarms is deployed"):
        find_document(scene.catalog, "alarms")
