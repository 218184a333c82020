"""Snapshots of the cluster's metadata, in KRaft's own form.

A snapshot is stored next to the segments of `__cluster_metadata-0` and replaces all records below
its end offset, so that the metadata log does not grow forever:

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint

    control batch   one SnapshotHeader record (type 3): int16 version 0, int64 the time of the last
                    record it covers, no tagged fields
    batches         records of cluster_records.py that make the whole image, those included that
                    Millstream only carries; offsets count from 0
    control batch   one SnapshotFooter record (type 4): int16 version 0, no tagged fields

Crash rule: it is written under a temporary name, synced and renamed; only then is the log start
moved. A file without its footer, or with wrong CRCs, is ignored in favour of an older one, which
the log still reaches back to.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    MetadataRecord,
    decode_record,
    encode_record,
)
from millstream.errors import CorruptBatch
from millstream.records.batch import iterate_headers
from millstream.records.record import ControlType, Record, decode_batch, encode_batch
from millstream.storage.filesystem import FileSystem, read_file, replace_file

RECORDS_PER_BATCH_MAX = 2_000

_CONTROL_KEY = struct.Struct(">hh")
_HEADER = struct.Struct(">hqb")
_FOOTER = struct.Struct(">hb")
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def write_snapshot(
    fs: FileSystem, directory: str, image: ClusterImage, *, epoch: int, now_ms: int
) -> int:
    """Write the image durably; returns its end offset."""
    end_offset = image.version + 1
    content = _control_batch(
        ControlType.SNAPSHOT_HEADER, _HEADER.pack(0, now_ms, 0), 0, epoch, now_ms
    )
    offset = 1
    for chunk in _chunks(image.records()):
        records = [
            Record(offset + i, now_ms, None, encode_record(record))
            for i, record in enumerate(chunk)
        ]
        content += encode_batch(records, leader_epoch=epoch)
        offset += len(chunk)
    footer = _FOOTER.pack(0, 0)
    content += _control_batch(ControlType.SNAPSHOT_FOOTER, footer, offset, epoch, now_ms)
    replace_file(fs, f"{directory}/{end_offset:020d}-{epoch:010d}.checkpoint", content)
    return end_offset


def newest_snapshot(fs: FileSystem, directory: str) -> ClusterImage:
    """The image of the newest whole snapshot; the empty image if there is none."""
    for name in sorted(_names(fs, directory), reverse=True):
        end_offset = int(name[:20])
        try:
            records = list(_read_snapshot(read_file(fs, f"{directory}/{name}")))
        except CorruptBatch:
            continue
        return ClusterImage().apply(records, end_offset - 1)
    return ClusterImage()


def remove_snapshots_before(fs: FileSystem, directory: str, end_offset: int) -> None:
    """Delete snapshots older than a newer one."""
    for name in _names(fs, directory):
        if int(name[:20]) < end_offset:
            fs.unlink(f"{directory}/{name}")


def _names(fs: FileSystem, directory: str) -> list[str]:
    return [name for name in fs.listdir(directory) if _NAME.fullmatch(name)]


def _read_snapshot(content: bytes) -> Iterator[MetadataRecord]:
    complete = False
    for position, header in iterate_headers(content):
        records = decode_batch(content, position)
        if header.is_control:
            complete = ControlType.from_key(records[0].key) is ControlType.SNAPSHOT_FOOTER
            continue
        for record in records:
            yield decode_record(record.value or b"")
    if not complete:
        raise CorruptBatch("snapshot without a footer")


def _chunks(records: Iterable[MetadataRecord]) -> Iterator[list[MetadataRecord]]:
    chunk: list[MetadataRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == RECORDS_PER_BATCH_MAX:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _control_batch(kind: ControlType, value: bytes, offset: int, epoch: int, now_ms: int) -> bytes:
    record = Record(offset, now_ms, _CONTROL_KEY.pack(0, kind), value)
    return encode_batch([record], leader_epoch=epoch, is_control=True)
