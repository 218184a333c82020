"""Removing versions, with everything that they have; an interrupted removal is completed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import ConfigError, StoreError
from millstream.pipelines.running.locking import locked
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions import removing
from millstream.pipelines.versions.deploying import register
from millstream.pipelines.versions.removing import remove_version
from tests.pipelines.conftest import Topics
from tests.pipelines.versions.conftest import Scene, version_of

STEPS = ("drop_tables", "delete_group", "delete_checkpoint", "forget")


@pytest.fixture
def settings(topics: Topics, tmp_path: Path) -> Settings:
    return Settings(tmp_path, broker=topics.bootstrap)


def deploy_two(scene: Scene, tmp_path: Path) -> Path:
    """Two versions; the second has a checkpoint."""
    checkpoint = tmp_path / "checkpoints" / "revenue@2"
    (checkpoint / "offsets").mkdir(parents=True)
    for version in ("1", "2"):
        described = replace(version_of(version), checkpoint="")
        if version == "2":
            described = replace(described, checkpoint=str(checkpoint))
        register(scene.catalog, "revenue", described)
        scene.write(version, 0, 10, [("monday", float(version))])
    return checkpoint


@pytest.mark.parametrize("step", STEPS)
def test_removal_that_failed_at_any_step_is_completed(
    scene: Scene, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    checkpoint = deploy_two(scene, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(removing, step, fail)
        with pytest.raises(KeyboardInterrupt):
            remove_version(scene.catalog, settings, "revenue", "2")
    assert scene.document().get("2").is_removing
    with pytest.raises(ConfigError, match="is being removed: complete that"):
        scene.deploy("2")
    remove_version(scene.catalog, settings, "revenue", "2")
    assert list(scene.document().versions) == ["1"]
    assert not checkpoint.exists()
    assert scene.read() == [("monday", 1.0)]
    with pytest.raises(StoreError):  # a run of the removed version that is still alive
        scene.write("2", 1, 11, [("monday", 9.0)])


def fail(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_removed_version_starts_from_the_beginning(
    scene: Scene, settings: Settings, tmp_path: Path
) -> None:
    deploy_two(scene, tmp_path)
    remove_version(scene.catalog, settings, "revenue", "2")
    scene.deploy("2")
    with scene.database.open() as store:
        scene.store = store
        scene.write("2", 0, 4, [("sunday", 4.0)])
    assert scene.read("SELECT day FROM revenue__v2") == [("sunday",)]


def test_version_that_runs_or_is_in_force_is_not_removed(
    scene: Scene, settings: Settings, tmp_path: Path
) -> None:
    checkpoint = deploy_two(scene, tmp_path)
    with locked(str(checkpoint)), pytest.raises(ConfigError, match="runs on the checkpoint"):
        remove_version(scene.catalog, settings, "revenue", "2")
    with pytest.raises(ConfigError, match="is in force: switch to another one first"):
        remove_version(scene.catalog, settings, "revenue", "1")
    assert not scene.document().get("2").is_removing


def test_last_version_is_removed_with_its_views(
    scene: Scene, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scene.deploy("1")
    scene.write("1", 0, 10, [("monday", 1.0)])
    remove_version(scene.catalog, settings, "revenue", "1")
    assert scene.catalog.find("revenue") is None
    assert scene.catalog.read(lambda work: work.kind("revenue")) is None
    assert not (tmp_path / "millstream.lock").exists()  # it has no checkpoint to be locked
