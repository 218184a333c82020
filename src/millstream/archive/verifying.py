"""Checks an archive: every byte of every file, every record, and what no manifest lists.

Imports pyarrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from millstream.archive.files import DataFile
from millstream.archive.manifest import ArchivedFile, ArchiveError, orphans
from millstream.archive.reading import PartitionArchive
from millstream.archive.rows import rebuild
from millstream.errors import CorruptBatch
from millstream.records.batch import parse_header
from millstream.records.record import decode_records

CHUNK_BYTES = 4 * 1024 * 1024


@dataclass
class Report:
    """What was checked of a partition."""

    topic: str
    partition: int
    files: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)  # files of crashes and of earlier leaders


def verify_partition(partition: PartitionArchive, *, decode: bool = True) -> Report:
    """Check all files. Without `decode`, only that they are the ones that were written."""
    manifest = partition.manifest
    report = Report(manifest.topic, manifest.partition)
    for file in manifest.files:
        report.files += 1
        try:
            report.size_bytes += _check_bytes(partition, file)
            if decode:
                report.records += _check_records(partition, file)
        except (ArchiveError, CorruptBatch) as error:
            report.problems.append(str(error))
    names = partition.place.list(partition.directory)
    report.unlisted = orphans(names, manifest)
    return report


def _check_bytes(partition: PartitionArchive, file: ArchivedFile) -> int:
    path = f"{partition.directory}/{file.name}"
    where = partition.place.path_of(path)
    try:
        content = partition.place.open(path)
    except FileNotFoundError:
        raise ArchiveError(f"{where} is missing") from None
    digest, size = hashlib.sha256(), 0
    try:
        for chunk in _chunks(content):
            digest.update(chunk)
            size += len(chunk)
    except OSError as error:
        raise ArchiveError(f"{where} cannot be read: {error}") from error
    finally:
        content.close()
    if size != file.size_bytes:
        raise ArchiveError(f"{where} has {size} bytes, and the manifest says {file.size_bytes}")
    if digest.hexdigest() != file.sha256:
        raise ArchiveError(f"{where} has changed since it was written: its SHA-256 is another one")
    return size


def _chunks(content: Any) -> Iterator[bytes]:
    while chunk := content.read(CHUNK_BYTES):
        yield chunk


def _check_records(partition: PartitionArchive, file: ArchivedFile) -> int:
    opened = DataFile(partition.place, partition.directory, file)
    where, before, count = opened.where, file.base_offset - 1, 0
    try:
        if opened.topic_id != partition.manifest.topic_id:
            raise ArchiveError(f"{where} is of the topic with id {opened.topic_id}")
        for number in range(opened.group_count):
            rows = opened.read_group(number)
            offsets = rows.column("offset")
            steps = pc.pairwise_diff(offsets)
            falls = pc.any(pc.less_equal(steps, 0)).as_py()
            if falls or offsets[0].as_py() <= before:
                raise ArchiveError(f"{where} has records that are not sorted by offset")
            before = offsets[rows.num_rows - 1].as_py()
            for _, batch in rebuild(rows):
                header = parse_header(batch)
                count += len(decode_records(header, memoryview(batch)[61:]))
    finally:
        opened.close()
    if before >= file.end_offset:
        raise ArchiveError(f"{where} has records past its end, {file.end_offset}")
    if count != file.records:
        raise ArchiveError(f"{where} has {count} records, and the manifest says {file.records}")
    return count
