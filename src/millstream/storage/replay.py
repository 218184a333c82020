"""Replays the journal into segments, after a crash and before logs are recovered.

Rules that keep a replay safe:

- an entry whose log is not there, or has another topic id, is ignored: the topic was deleted;
- an entry below the saved recovery point is ignored: the segment has those bytes on the disk;
- a segment that is not there is created only after the last one that is: any other was deleted, by
  retention or compaction;
- bytes are written at their place, and never beyond a hole.

A log whose bytes were changed since (truncation, compaction) has a void entry, and earlier entries
were skipped when the journal was read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from millstream.errors import CorruptBatch
from millstream.partitions import TopicPartition
from millstream.records.batch import iterate_headers
from millstream.storage import names
from millstream.storage.checkpoints import read_partition_metadata
from millstream.storage.filesystem import FileSystem, write_fully
from millstream.storage.journal import JournalEntry, LogId, read_journals

logger = logging.getLogger(__name__)


def replay_journal(
    fs: FileSystem, directory: str, recovery_points: Mapping[TopicPartition, int]
) -> int:
    """Write the journal's bytes to their segments, durably; returns how many were missing."""
    by_log: dict[LogId, list[JournalEntry]] = {}
    for entry in read_journals(fs, directory):
        by_log.setdefault(entry.log_id, []).append(entry)
    if not by_log:
        return 0
    paths = _logs_by_id(fs, directory)
    restored = 0
    for log_id, entries in by_log.items():
        found = paths.get(log_id)
        if found is not None:
            topic_partition, path = found
            restored += _replay_log(fs, path, entries, recovery_points.get(topic_partition, 0))
    if restored:
        logger.info("restored %d bytes from the journal of %s", restored, directory)
    return restored


def _logs_by_id(fs: FileSystem, directory: str) -> dict[LogId, tuple[TopicPartition, str]]:
    found: dict[LogId, tuple[TopicPartition, str]] = {}
    for name in fs.listdir(directory):
        topic_partition = names.parse_partition_directory(name)
        path = f"{directory}/{name}"
        if topic_partition is None or not fs.is_directory(path):
            continue
        topic_id = read_partition_metadata(fs, path)
        if topic_id is not None:
            found[topic_id.bytes, topic_partition[1]] = topic_partition, path
    return found


def _replay_log(fs: FileSystem, path: str, entries: list[JournalEntry], recovery_point: int) -> int:
    bases = [
        parsed[0]
        for name in fs.listdir(path)
        if (parsed := names.parse_offset_file(name)) and parsed[1] == names.LOG_SUFFIX
    ]
    last_base = max(bases, default=-1)
    restored = 0
    by_segment: dict[int, list[JournalEntry]] = {}
    for entry in entries:
        if _end_offset(entry) > recovery_point:
            by_segment.setdefault(entry.base_offset, []).append(entry)
    for base_offset in sorted(by_segment):
        if base_offset in bases or base_offset > last_base:
            restored += _replay_segment(
                fs, names.offset_file(path, base_offset, names.LOG_SUFFIX), by_segment[base_offset]
            )
    fs.sync_directory(path)
    return restored


def _end_offset(entry: JournalEntry) -> int:
    """The offset after the entry's last batch."""
    end_offset = 0
    try:
        for _, header in iterate_headers(entry.data or b""):
            end_offset = header.next_offset
    except CorruptBatch:  # its CRC matched, so it was written like that: nothing to restore
        return 0
    return end_offset


def _replay_segment(fs: FileSystem, path: str, entries: list[JournalEntry]) -> int:
    restored = 0
    created = not fs.exists(path)
    if created and entries[0].position != 0:
        return 0
    fd = fs.open(path, create=True)
    try:
        for entry in entries:
            data = entry.data or b""
            if entry.position > fs.size(fd):
                logger.error("%s is shorter than its journal expects: %d bytes", path, fs.size(fd))
                break
            if fs.pread(fd, len(data), entry.position) != data:
                restored += len(data)
            # Always written: after a failed sync, the page cache may show bytes that the disk
            # lacks.
            write_fully(fs, fd, (data,), entry.position)
        fs.fdatasync(fd)
    finally:
        fs.close(fd)
    return restored
