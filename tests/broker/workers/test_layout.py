"""The data directory of workers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from millstream.broker.metadata.shared import METADATA_DIRECTORY
from millstream.broker.workers.layout import Layout
from millstream.errors import DirectoryLocked, StorageError
from millstream.storage.checkpoints import read_meta_properties
from millstream.storage.directories import LogDirectories
from millstream.storage.filesystem import OsFileSystem

FS = OsFileSystem()


def test_new_directories_are_laid_out_for_the_workers(tmp_path: Path) -> None:
    layout = Layout(FS, [tmp_path / "a", tmp_path / "b"])
    assert layout.cluster_id is None
    layout.create(3)
    cluster_id = layout.cluster_id
    assert cluster_id
    layout.prepare_worker(2, cluster_id)
    again = Layout(FS, [tmp_path / "b", tmp_path / "a"])
    assert (again.workers, again.cluster_id, again.cluster) == (3, cluster_id, layout.cluster)
    for path in again.worker_directories(2):
        meta = read_meta_properties(FS, path)
        assert meta is not None
        assert (meta.node_id, meta.cluster_id) == (2, cluster_id)


def test_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    layout = Layout(FS, [tmp_path])
    layout.prepare_worker(1, "one")
    with pytest.raises(StorageError, match="belongs to node 1 of cluster one, not to worker 1 of"):
        layout.prepare_worker(1, "two")


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        Layout(FS, [tmp_path / name]).create(1)
    with pytest.raises(StorageError, match="both contain cluster"):
        Layout(FS, [tmp_path / "a", tmp_path / "b"])


def test_cluster_is_beside_the_metadata_of_a_single_broker(tmp_path: Path) -> None:
    (tmp_path / "b" / METADATA_DIRECTORY).mkdir(parents=True)
    layout = Layout(FS, [tmp_path / "a", tmp_path / "b"])
    assert layout.cluster == str(tmp_path / "b" / "cluster")


def test_one_parent_at_a_time(tmp_path: Path) -> None:
    with ExitStack() as locks:
        Layout(FS, [tmp_path]).lock(locks)
        with ExitStack() as others, pytest.raises(DirectoryLocked, match="in use by another"):
            Layout(FS, [tmp_path]).lock(others)
    with ExitStack() as locks:
        Layout(FS, [tmp_path]).lock(locks)


def test_running_worker_is_noticed(tmp_path: Path) -> None:
    layout = Layout(FS, [tmp_path])
    layout.create(2)
    layout.check_stopped(2)
    presence = FS.lock(layout.presence_lock(2))
    with pytest.raises(DirectoryLocked, match=r"worker 2 of .* is still running"):
        layout.check_stopped(2)
    FS.close(presence)
    layout.check_stopped(2)


def test_single_broker_refuses_the_directory_of_workers(tmp_path: Path) -> None:
    Layout(FS, [tmp_path]).create(2)
    with pytest.raises(StorageError, match="start them with --workers N"):
        LogDirectories.open([tmp_path])


def test_damaged_number_of_workers_is_reported(tmp_path: Path) -> None:
    layout = Layout(FS, [tmp_path])
    layout.create(2)
    (tmp_path / "cluster" / "workers.json").write_text("{}")
    with pytest.raises(StorageError, match="cannot be read"):
        _ = layout.workers
