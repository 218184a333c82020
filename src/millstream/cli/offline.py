"""Reads log files without a broker: finds segments, iterates batches, reports problems.

Files are mapped, never written, and no lock is taken: a directory may be read while its broker
runs, where the newest segment may then end in the middle of a batch.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from millstream.cli.failures import CommandFailed
from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, parse_header, verify_crc
from millstream.storage.index import OFFSET_ENTRY, TIME_ENTRY
from millstream.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_offset_file,
    parse_partition_directory,
)

Mapped = memoryview | bytes


class SegmentFile(NamedTuple):
    """One `.log` file. Sorts by topic, partition, base offset."""

    topic: str
    partition: int
    base_offset: int
    path: Path


class Problem(NamedTuple):
    """The first problem of a file, and its position."""

    path: Path
    position: int
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}, offset {self.offset}: {self.what}"


@dataclass
class SegmentReport:
    """The result of reading a whole segment."""

    segment: SegmentFile
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    next_offset: int = 0
    problems: list[Problem] = field(default_factory=list)


def find_segments(path: Path, topic: str | None, partition: int | None) -> list[SegmentFile]:
    """The segments under `path`: a `.log` file, a partition's directory, or a data directory."""
    if not path.exists():
        raise CommandFailed(f"{path}: no such file or directory")
    files = [path] if path.is_file() else path.rglob(f"*{LOG_SUFFIX}")
    found = [segment for segment in map(parse_segment, files) if segment is not None]
    if path.is_file() and not found:
        raise CommandFailed(f"{path} is not a log segment: its name must be 20 digits and .log")
    chosen = sorted(
        segment
        for segment in found
        if topic in (None, segment.topic) and partition in (None, segment.partition)
    )
    if not chosen:
        raise CommandFailed(
            f"no log segments in {path}" + (f" for topic {topic!r}" if topic else "")
        )
    return chosen


def parse_segment(path: Path) -> SegmentFile | None:
    """The segment in this file; None for other files and for partitions being deleted."""
    name = parse_offset_file(path.name)
    if name is None or name[1] != LOG_SUFFIX:
        return None
    home = parse_partition_directory(path.absolute().parent.name)
    return None if home is None else SegmentFile(*home, name[0], path)


@contextmanager
def mapped(path: Path) -> Iterator[Mapped]:
    """The file's bytes, mapped; an empty file cannot be mapped and is just empty."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            yield view


def walk(content: Mapped) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch with its position, checked; raises `CorruptBatch` at the first bad one."""
    position = 0
    while position < len(content):
        header = parse_header(content, position)
        verify_crc(content, position, header)
        yield position, header
        position += header.size_bytes


def verify_segment(segment: SegmentFile) -> SegmentReport:
    """Check every batch, ascending offsets, and all index entries."""
    report = SegmentReport(segment, next_offset=segment.base_offset)
    pointed_at = dict.fromkeys(position for _, position in index_entries(segment, INDEX_SUFFIX))
    ends: dict[int, int] = {}  # last offset of each batch an index entry points at
    timestamps: dict[int, int] = {}  # max timestamp by last offset
    position = 0
    with mapped(segment.path) as content:
        try:
            for position, header in walk(content):
                if header.base_offset < report.next_offset:
                    raise CorruptBatch(
                        f"its base offset is below {report.next_offset}, the one expected"
                    )
                report.batches += 1
                report.records += header.record_count
                report.next_offset = header.next_offset
                report.size_bytes = position + header.size_bytes
                timestamps[header.last_offset] = header.max_timestamp
                if position in pointed_at:
                    ends[position] = header.last_offset
        except CorruptBatch as error:
            bad_position = position if report.size_bytes <= position else report.size_bytes
            report.problems.append(
                Problem(segment.path, bad_position, report.next_offset, str(error))
            )
            return report
    report.problems += verify_offset_index(segment, ends)
    report.problems += verify_time_index(segment, timestamps)
    return report


def index_entries(segment: SegmentFile, suffix: str) -> list[tuple[int, int]]:
    """The entries of the segment's index; Kafka fills an index in use with zeros up to its size."""
    entry = OFFSET_ENTRY if suffix == INDEX_SUFFIX else TIME_ENTRY
    path = segment.path.with_suffix(suffix)
    if not path.exists():
        return []  # it would be rebuilt
    data = path.read_bytes()
    whole = data[: len(data) - len(data) % entry.size]
    pairs = [(pair[0], pair[1]) for pair in entry.iter_unpack(whole)]
    while pairs and pairs[-1] == (0, 0):
        pairs.pop()
    return pairs


def verify_offset_index(segment: SegmentFile, ends: dict[int, int]) -> list[Problem]:
    """The first entry whose position is not that of the batch ending with its offset."""
    for number, (relative, position) in enumerate(index_entries(segment, INDEX_SUFFIX)):
        offset = segment.base_offset + relative
        if ends.get(position) != offset:
            what = f"points at byte {position}, where no batch ends with that offset"
            path = segment.path.with_suffix(INDEX_SUFFIX)
            return [Problem(path, number * OFFSET_ENTRY.size, offset, what)]
    return []


def verify_time_index(segment: SegmentFile, timestamps: dict[int, int]) -> list[Problem]:
    """The first entry whose timestamp is not that of the batch ending with its offset."""
    for number, (timestamp, relative) in enumerate(index_entries(segment, TIME_INDEX_SUFFIX)):
        offset = segment.base_offset + relative
        if timestamps.get(offset) != timestamp:
            what = f"says timestamp {timestamp}, but the batch has {timestamps.get(offset)}"
            path = segment.path.with_suffix(TIME_INDEX_SUFFIX)
            return [Problem(path, number * TIME_ENTRY.size, offset, what)]
    return []
