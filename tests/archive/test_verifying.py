"""Damage of any kind is found, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.archive.manifest import file_name
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.service import ArchiveService, Source
from millstream.archive.verifying import Report, verify_partition
from tests.archive.scenes import all_kinds, archived, new_manifest


def verify(path: Path, **options: bool) -> Report:
    return verify_partition(open_archive(str(path)).topic("orders").partitions[0], **options)


def data_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))


def test_whole_archive_has_no_problems(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    report = verify(tmp_path)
    size = sum(path.stat().st_size for path in data_files(tmp_path))
    assert report == Report("orders", 0, 2, 250, size, [], [])
    assert verify(tmp_path, decode=False).records == 0


def test_all_kinds_of_batches_are_verified(tmp_path: Path) -> None:
    data, end, aborted = all_kinds()
    service = ArchiveService(open_place(str(tmp_path)))
    service.write(new_manifest(), end, aborted, Source(0, [data]))
    assert verify(tmp_path).problems == []


def test_bucket_is_verified(bucket: str) -> None:
    archived(open_place(bucket))
    part = open_archive(bucket).topic("orders").partitions[0]
    assert verify_partition(part).problems == []


@pytest.mark.parametrize("decode", [True, False])
def test_every_flipped_byte_is_found(tmp_path: Path, decode: bool) -> None:
    archived(open_place(str(tmp_path)))
    path = data_files(tmp_path)[0]
    content = path.read_bytes()
    for position in range(0, len(content), len(content) // 20):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        (problem,) = verify(tmp_path, decode=decode).problems
        assert path.name in problem


def test_missing_short_and_unlisted_files_are_named(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    first, second = data_files(tmp_path)
    second.write_bytes(second.read_bytes()[:-1])
    left = first.with_name(file_name(250, 260, 1))
    left.write_bytes(b"half an upload")
    first.unlink()
    report = verify(tmp_path)
    assert ["is missing" in report.problems[0], "bytes" in report.problems[1]] == [True, True]
    assert report.unlisted == [left.name]


def test_manifest_that_lies_is_found(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    (manifest,) = tmp_path.rglob("manifest-*.json")
    manifest.write_text(manifest.read_text().replace('"records": 100', '"records": 99'))
    (problem,) = verify(tmp_path).problems
    assert "has 100 records, and the manifest says 99" in problem
