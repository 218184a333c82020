"""Log files read offline: sound ones pass, each kind of damage is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.failures import CommandFailed
from millstream.cli.offline import find_segments, mapped, verify_segment, walk
from millstream.records.record import Record, encode_batch
from millstream.storage.index import OFFSET_ENTRY, TIME_ENTRY

TIME_MS = 1_763_108_400_000


def batch(first_offset: int, count: int = 2) -> bytes:
    records = [
        Record(offset, TIME_MS + offset, b"key", b"value %d" % offset)
        for offset in range(first_offset, first_offset + count)
    ]
    return encode_batch(records, leader_epoch=0)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Offsets 10 to 15 of orders-0 in three batches, with both indexes."""
    path = tmp_path / "orders-0" / f"{10:020d}.log"
    path.parent.mkdir()
    batches = [batch(10), batch(12), batch(14)]
    path.write_bytes(b"".join(batches))
    second = len(batches[0])
    path.with_suffix(".index").write_bytes(OFFSET_ENTRY.pack(3, second))
    path.with_suffix(".timeindex").write_bytes(TIME_ENTRY.pack(TIME_MS + 13, 3))
    return path


def problem(path: Path) -> tuple[Path, int, int]:
    [segment] = find_segments(path, None, None)
    [found] = verify_segment(segment).problems
    return found.path, found.position, found.offset


def test_sound_segment_is_counted(segment: Path) -> None:
    [found] = find_segments(segment, None, None)
    report = verify_segment(found)
    assert report.problems == []
    assert (report.batches, report.records, report.next_offset) == (3, 6, 16)
    assert report.size_bytes == segment.stat().st_size


def test_flipped_bit_is_found_in_its_batch(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    second = len(batch(10))
    data[second + len(batch(12)) - 3] ^= 1
    segment.write_bytes(data)
    assert problem(segment) == (segment, second, 12)


def test_torn_tail_is_found(segment: Path) -> None:
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes()[:-1])
    assert problem(segment) == (segment, size - len(batch(14)), 14)


def test_bytes_too_few_for_a_header_are_found(segment: Path) -> None:
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes() + b"\0" * 5)
    assert problem(segment) == (segment, size, 16)


def test_offset_that_goes_back_is_found(segment: Path) -> None:
    segment.write_bytes(batch(10) + batch(14) + batch(12))
    assert problem(segment) == (segment, len(batch(10)) * 2, 16)


def test_offset_index_entry_that_is_shifted_is_found(segment: Path) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(OFFSET_ENTRY.pack(3, len(batch(10)) + 1))
    assert problem(segment) == (index, 0, 13)


def test_time_index_entry_that_is_wrong_is_found(segment: Path) -> None:
    index = segment.with_suffix(".timeindex")
    index.write_bytes(TIME_ENTRY.pack(TIME_MS + 12, 3))
    assert problem(segment) == (index, 0, 13)


def test_zeros_after_an_index_in_use_are_no_entries(segment: Path) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(OFFSET_ENTRY.size * 3))
    [found] = find_segments(segment, None, None)
    assert verify_segment(found).problems == []


def test_empty_segment_and_missing_indexes_are_sound(segment: Path) -> None:
    segment.write_bytes(b"")
    segment.with_suffix(".index").unlink()
    segment.with_suffix(".timeindex").unlink()
    [found] = find_segments(segment, None, None)
    assert verify_segment(found).problems == []
    with mapped(segment) as content:
        assert list(walk(content)) == []


def test_find_segments_takes_files_directories_and_filters(segment: Path, tmp_path: Path) -> None:
    for home in ("orders-1", "audit-0", "gone-0.0123456789abcdef0123456789abcdef-delete"):
        (tmp_path / home).mkdir()
        (tmp_path / home / f"{0:020d}.log").write_bytes(b"")
    names = [f"{s.topic}-{s.partition}" for s in find_segments(tmp_path, None, None)]
    assert names == ["audit-0", "orders-0", "orders-1"]
    [one] = find_segments(tmp_path, "orders", 1)
    assert one.path == tmp_path / "orders-1" / f"{0:020d}.log"


def test_find_segments_says_when_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="no such file"):
        find_segments(tmp_path / "nowhere", None, None)
    with pytest.raises(CommandFailed, match="no log segments"):
        find_segments(tmp_path, None, None)
    (tmp_path / "notes.log").write_text("x")
    with pytest.raises(CommandFailed, match="is not a log segment"):
        find_segments(tmp_path / "notes.log", None, None)
