"""What is told of partitions with an archive, of those whose manifest is not loaded, and of those
for which the broker has no place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from millstream.archive.manifest import ArchivedFile, Manifest
from millstream.broker.archiving.partition import PartitionArchive, Totals
from millstream.broker.archiving.reporting import NO_PATH, archived_partitions
from millstream.clock import SystemClock

ID = UUID(int=7)


def partition(archive: PartitionArchive | None, **changes: Any) -> Any:
    segments = [SimpleNamespace(base_offset=at, size=100) for at in (0, 10, 20)]
    config = SimpleNamespace(remote_storage_enable=True)
    log = SimpleNamespace(log_start_offset=5, log_end_offset=25, segments=segments, config=config)
    given = {"offline_error": None, "is_internal": False, "topic": "orders", "index": 0}
    return SimpleNamespace(archive=archive, log=log, **{**given, **changes})


def archived() -> PartitionArchive:
    archive = PartitionArchive(None, SystemClock())  # type: ignore[arg-type]
    file = ArchivedFile("a", 0, 10, 9, 40, 100, 1, 8, 0, "", "", archived_ms=99)
    archive.loaded(Manifest("orders", ID, 0, 3, 0, (file,)))
    return archive


def test_files_are_summed_and_closed_segments_after_them_are_the_lag() -> None:
    archive = archived()
    (told,) = archived_partitions([partition(archive)], has_path=True)
    assert (told.start_offset, told.end_offset, told.lag_bytes) == (0, 10, 100)
    assert (told.local_start_offset, told.log_end_offset, told.problem) == (5, 25, None)
    assert told.totals == Totals(1, 9, 40, 100, 8, 99)
    assert archive.totals is told.totals  # counted once
    assert archive.manifest is not None
    archive.adopt(archive.manifest.starting_at(10))
    assert archive.totals.files == 0


def test_manifest_that_is_not_loaded_has_no_totals() -> None:
    archive = PartitionArchive(None, SystemClock())  # type: ignore[arg-type]
    archive.problem = "the bucket is gone"
    for it in (archive, None):
        (told,) = archived_partitions([partition(it)], has_path=True)
        assert (told.totals, told.lag_bytes) == (None, 200)
        assert told.problem == (None if it is None else "the bucket is gone")


def test_broker_without_a_place_says_so_and_others_are_left_out() -> None:
    (told,) = archived_partitions([partition(None)], has_path=False)
    assert told.problem == NO_PATH
    off = partition(None)
    off.log.config.remote_storage_enable = False
    others = [off, partition(archived(), offline_error="gone"), partition(None, is_internal=True)]
    assert list(archived_partitions(others, has_path=False)) == []
