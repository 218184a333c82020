"""Data files hold the rows of a range, and are refused when they are damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.archive import rows as rows_module
from millstream.archive.files import DataFile, Range, write_file
from millstream.archive.manifest import ArchiveError, partition_path
from millstream.archive.places import open_place
from millstream.archive.rows import SCHEMA, rebuild
from tests.archive.scenes import TOPIC_ID, all_kinds, batches, decoded

DIRECTORY = partition_path("orders", TOPIC_ID, 0)


def wanted(first: int, end: int, **options: object) -> Range:
    return Range("orders", TOPIC_ID, 0, first, end, 2, **options)  # type: ignore[arg-type]


def test_file_has_all_records_and_says_what_they_are(tmp_path: Path) -> None:
    data, end, aborted = all_kinds()
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(0, end, aborted=aborted), [data])
    file = DataFile(place, DIRECTORY, entry)
    back = b"".join(
        batch for n in range(file.group_count) for _, batch in rebuild(file.read_group(n))
    )
    assert decoded(back) == decoded(data)
    assert file.aborted == aborted
    assert file.topic_id == TOPIC_ID
    path = tmp_path / DIRECTORY / entry.name
    assert entry.size_bytes == path.stat().st_size
    assert entry.sha256 == sha256(path.read_bytes()).hexdigest()
    assert entry.source_sha256 == sha256(data).hexdigest()
    assert entry.segment_bytes == len(data)
    assert entry.last_epoch == 2


def test_file_can_be_read_without_millstream(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(0, 50), [batches(0, 50)])
    table = pq.read_table(tmp_path / DIRECTORY / entry.name, partitioning=None)
    assert table.schema.names == SCHEMA.names
    assert table.column("offset").to_pylist() == list(range(50))
    metadata = pq.read_metadata(tmp_path / DIRECTORY / entry.name)
    assert metadata.row_group(0).column(4).compression == "ZSTD"
    assert metadata.row_group(0).sorting_columns[0].column_index == 0
    assert json.loads(metadata.metadata[b"millstream"])["end_offset"] == 50


def test_range_of_times_and_offsets_is_noted(tmp_path: Path) -> None:
    entry = write_file(open_place(str(tmp_path)), wanted(20, 40), [batches(0, 100)])
    assert (entry.base_offset, entry.end_offset, entry.records) == (20, 40, 20)
    assert entry.max_timestamp - entry.min_timestamp == 190


def test_file_without_records_can_be_written(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(200, 300), [batches(0, 100)])
    assert (entry.records, entry.min_timestamp, entry.max_timestamp) == (0, -1, -1)
    assert DataFile(place, DIRECTORY, entry).group_for(200) is None


def test_groups_are_chosen_by_offset_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "GROUP_ROWS_MAX", 10)
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(0, 50), [batches(0, 50)])
    file = DataFile(place, DIRECTORY, entry)
    assert [file.group_for(offset) for offset in (0, 9, 10, 49, 50)] == [0, 0, 1, 4, None]
    assert file.groups(15, 30, None, None) == [1, 2]
    assert file.groups(0, 50, entry.min_timestamp + 150, entry.min_timestamp + 300) == [1, 2]


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(0, 50), [batches(0, 50)])
    with pytest.raises(ArchiveError, match="is missing"):
        DataFile(place, DIRECTORY, replace(entry, name="x.parquet"))
    with pytest.raises(ArchiveError, match="other offsets"):
        DataFile(place, DIRECTORY, replace(entry, end_offset=60))
    (tmp_path / DIRECTORY / entry.name).write_bytes(b"no Parquet")
    with pytest.raises(ArchiveError, match="is damaged"):
        DataFile(place, DIRECTORY, entry)


def test_flipped_bit_is_detected_when_it_is_read(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(0, 2000), [batches(0, 2000)])
    path = tmp_path / DIRECTORY / entry.name
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="damaged"):
        DataFile(place, DIRECTORY, entry).read_group(0)


def test_epoch_is_that_of_the_last_offset_even_if_its_batch_is_empty(tmp_path: Path) -> None:
    """Excision and compaction empty batches. The file begins and ends where the log says."""
    place = open_place(str(tmp_path))
    entry = write_file(place, wanted(0, 60, last_epoch=5, archived_ms=7), [batches(0, 50)])
    assert (entry.last_epoch, entry.archived_ms, entry.end_offset) == (5, 7, 60)
