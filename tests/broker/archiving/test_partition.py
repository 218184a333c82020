"""Archived records of a partition, by offset and by time."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.archive.manifest import ArchivedFile, Manifest
from millstream.archive.places import open_place
from millstream.archive.service import ArchiveService, Source, directory_of
from millstream.broker.archiving.partition import NOT_LOADED, PartitionArchive
from millstream.errors import ApiError, ErrorCode
from millstream.storage.transactions import AbortedTransaction
from millstream.testing.clock import ManualClock
from tests.archive.scenes import START_MS, all_kinds, archived, batches, new_manifest


class ServiceReader:
    """Reads without a process."""

    def __init__(self, path: Path) -> None:
        self._service = ArchiveService(open_place(str(path)))

    def read(
        self, manifest: Manifest, file: ArchivedFile, offset: int, max_bytes: int
    ) -> tuple[bytes, list[tuple[int, int, int]]]:
        found = self._service.read(directory_of(manifest), file, offset, max_bytes)
        return found.records, [tuple(each) for each in found.aborted]  # type: ignore[misc]

    def find(
        self, manifest: Manifest, file: ArchivedFile, timestamp: int, first_offset: int
    ) -> tuple[int, int, int] | None:
        return self._service.find(directory_of(manifest), file, timestamp, first_offset)


def opened(path: Path, manifest: Manifest) -> PartitionArchive:
    archive = PartitionArchive(ServiceReader(path), ManualClock())
    archive.loaded(manifest)
    return archive


def test_archive_knows_nothing_before_it_is_loaded(tmp_path: Path) -> None:
    archive = PartitionArchive(ServiceReader(tmp_path), ManualClock())
    assert (archive.leader_epoch, archive.start_offset, archive.end_offset) == (NOT_LOADED, None, 0)
    assert archive.offset_for_timestamp(0, 100) is None
    assert archive.max_timestamp(100) == -1
    archive.move_start(5)
    archive.loaded(new_manifest())
    assert (archive.leader_epoch, archive.start_offset, archive.last_epoch) == (2, None, -1)


def test_records_are_read_from_the_file_that_has_them(tmp_path: Path) -> None:
    archive = opened(tmp_path, archived(open_place(str(tmp_path))))
    assert (archive.start_offset, archive.end_offset, archive.last_epoch) == (0, 250, 2)
    assert archive.read(0, 10**6) == (batches(0, 100), [])
    assert archive.read(100, 10**6) == (batches(100, 250), [])
    assert archive.read(250, 10**6) == (b"", [])


def test_aborted_transactions_are_those_of_the_log(tmp_path: Path) -> None:
    data, end, (aborted,) = all_kinds()
    service = ArchiveService(open_place(str(tmp_path)))
    manifest = service.write(new_manifest(), end, (aborted,), Source(0, [data]))
    _, found = opened(tmp_path, manifest).read(0, 10**6)
    assert found == [AbortedTransaction(*aborted, aborted.last_offset)]


def test_start_that_was_moved_while_a_file_was_written_stays(tmp_path: Path) -> None:
    manifest = archived(open_place(str(tmp_path)))
    archive = PartitionArchive(ServiceReader(tmp_path), ManualClock())
    archive.loaded(new_manifest())
    archive.move_start(120)
    archive.adopt(manifest)
    assert archive.start_offset == 120


def test_nothing_is_deleted_unless_the_log_continues_the_archive(tmp_path: Path) -> None:
    archive = opened(tmp_path, archived(open_place(str(tmp_path))))
    assert (archive.end_offset, archive.deletable_offset) == (250, 0)
    archive.is_continued = True
    assert archive.deletable_offset == 250


def test_gap_between_files_is_passed(tmp_path: Path) -> None:
    manifest = archived(open_place(str(tmp_path)), [(0, 50), (80, 100)])
    assert opened(tmp_path, manifest).read(60, 10**6) == (batches(80, 100), [])


def test_records_are_found_by_time_below_the_log(tmp_path: Path) -> None:
    archive = opened(tmp_path, archived(open_place(str(tmp_path))))
    moment = START_MS + 10 * 120
    assert archive.offset_for_timestamp(moment, 200) == (moment, 120, 2)
    assert archive.offset_for_timestamp(moment, 120) is None
    assert archive.offset_for_timestamp(START_MS + 10**6, 200) is None
    assert archive.max_timestamp(100) == START_MS + 990
    archive.move_start(130)
    assert archive.start_offset == 130
    assert archive.offset_for_timestamp(0, 200) == (START_MS + 1300, 130, 2)


def test_missing_file_is_an_error_that_clients_retry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = opened(tmp_path, archived(open_place(str(tmp_path))))
    next(iter(sorted(tmp_path.rglob("*.parquet")))).unlink()
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            archive.read(0, 100)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError):
        archive.offset_for_timestamp(0, 100)
    assert len([it for it in caplog.records if "orders-0" in it.message]) == 1
