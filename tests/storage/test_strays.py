"""Logs that were set aside: marked, kept, deleted."""

from __future__ import annotations

import uuid

import pytest

from millstream.storage.checkpoints import write_partition_metadata
from millstream.storage.directory import LogDirectory
from millstream.storage.strays import (
    MARK,
    Mark,
    Stray,
    delete_strays,
    mark_strays,
    read_metadata_version,
    strays_in,
    write_metadata_version,
)
from tests.storage.store import DATA, Store

TOPIC_ID = uuid.uuid4()
NAME = f"t-3.{uuid.uuid4().hex}-stray"


@pytest.fixture
def directory() -> LogDirectory:
    """With one stray."""
    store = Store()
    store.fs.make_directory(f"{DATA}/{NAME}")
    write_partition_metadata(store.fs, f"{DATA}/{NAME}", TOPIC_ID)
    return store.log().directory


def mark(directory: LogDirectory, now_ms: int, version: int = 5, is_kept: bool = False) -> None:
    mark_strays(directory, now_ms=now_ms, metadata_version=version, is_kept=is_kept)


def delete(directory: LogDirectory, now_ms: int, version: int = 5, assigned: object = None) -> None:
    delete_strays(
        directory,
        now_ms=now_ms,
        metadata_version=version,
        delay_ms=100,
        is_assigned=lambda topic_id, partition: (topic_id, partition) == assigned,
    )
    directory.sweep()


def names_of(directory: LogDirectory) -> list[str]:
    return [stray.name for stray in strays_in(directory)]


def test_stray_is_deleted_after_the_delay(directory: LogDirectory) -> None:
    assert names_of(directory) == [NAME]
    delete(directory, 10**9)
    assert names_of(directory) == [NAME], "it has no mark"
    mark(directory, 1000)
    mark(directory, 5000)  # it has one already
    delete(directory, 1099)
    assert names_of(directory) == [NAME]
    delete(directory, 1100)
    assert names_of(directory) == []
    assert not [it for it in directory.fs.listdir(directory.path) if it.startswith("t-3")]


def test_deletion_is_finished_by_the_next_sweep(directory: LogDirectory) -> None:
    (stray,) = strays_in(directory)
    stray.delete()
    (renamed,) = [it for it in directory.fs.listdir(directory.path) if it.startswith("t-3")]
    assert renamed.endswith("-delete")
    directory.sweep()
    assert renamed not in directory.fs.listdir(directory.path)


@pytest.mark.parametrize("reason", ["kept", "older", "assigned"])
def test_stray_is_not_deleted_if_it_may_be_needed(directory: LogDirectory, reason: str) -> None:
    mark(directory, 0, is_kept=reason == "kept")
    assigned = (TOPIC_ID, 3) if reason == "assigned" else None
    delete(directory, 10**9, version=4 if reason == "older" else 5, assigned=assigned)
    assert names_of(directory) == [NAME]


def test_damaged_mark_counts_as_none(directory: LogDirectory) -> None:
    mark(directory, 0)
    (stray,) = strays_in(directory)
    assert stray.mark() == Mark(0, 5, is_kept=False)
    fd = directory.fs.open(f"{stray.path}/{MARK}")
    directory.fs.truncate(fd, 12)
    directory.fs.close(fd)
    assert stray.mark() is None
    delete(directory, 10**9)
    assert names_of(directory) == [NAME]


def test_partition_of_a_name_that_was_cut_is_unknown(directory: LogDirectory) -> None:
    assert Stray(directory, NAME).partition == 3
    assert Stray(directory, f"a-7.b-12.{uuid.uuid4().hex}-stray").partition == 12
    assert Stray(directory, f"{'t' * 200}.{uuid.uuid4().hex}-stray").partition is None


def test_metadata_version_is_remembered(directory: LogDirectory) -> None:
    assert read_metadata_version(directory) == -1
    write_metadata_version(directory, 123)
    assert read_metadata_version(directory) == 123
