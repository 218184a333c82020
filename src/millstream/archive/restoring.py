"""Restores archived partitions as the files of a log, from which a broker can start.

The log has the topic's id, and its records have their offsets, timestamps, producers and leader
epochs. Each file of the archive becomes a segment, in the compression that its batches had. The
broker rebuilds indexes and producer states when it starts, and topics from the logs if the
directory has no metadata.

Imports pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.archive.files import DataFile
from millstream.archive.manifest import ArchiveError
from millstream.archive.reading import PartitionArchive, TopicArchive
from millstream.archive.rows import rebuild
from millstream.storage import names
from millstream.storage.checkpoints import read_offsets, write_offsets, write_partition_metadata
from millstream.storage.filesystem import OsFileSystem


class Restored(NamedTuple):
    """A partition that was restored."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    records: int
    size_bytes: int
    segments: int


def restore_topic(
    topic: TopicArchive, directory: Path, on_segment: Callable[[int], None] = lambda size: None
) -> list[Restored]:
    """Write the partitions into a data directory that no broker uses. Raises `ArchiveError`, and
    leaves nothing behind if one of them is there already."""
    targets = {
        partition: directory / f"{topic.topic}-{partition}" for partition in topic.partitions
    }
    for target in targets.values():
        if target.exists():
            raise ArchiveError(f"{target} exists: restore into another directory")
    fs = OsFileSystem()
    restored = []
    for number, target in targets.items():
        part = topic.partitions[number]
        unfinished = target.with_name(f"{target.name}.restoring")
        unfinished.mkdir(parents=True)
        restored.append(_restore(part, unfinished, on_segment))
        write_partition_metadata(fs, str(unfinished), topic.topic_id)
        fs.sync_directory(str(unfinished))
        unfinished.rename(target)
        fs.sync_directory(str(directory))
    # All of it is durable: recovery need not scan it, and accepts the gaps of compaction.
    for name, offsets in (
        (names.RECOVERY_POINTS, {it.partition: it.end_offset for it in restored}),
        (names.LOG_START_OFFSETS, {it.partition: it.start_offset for it in restored}),
    ):
        path = str(directory / name)
        known = read_offsets(fs, path)
        known |= {(topic.topic, partition): offset for partition, offset in offsets.items()}
        write_offsets(fs, path, known)
    return restored


def _restore(
    part: PartitionArchive, directory: Path, on_segment: Callable[[int], None]
) -> Restored:
    records = size = 0
    for file in part.files:
        path = names.offset_file(str(directory), file.base_offset, names.LOG_SUFFIX)
        opened = DataFile(part.place, part.directory, file)
        with Path(path).open("wb") as segment:
            for number in range(opened.group_count):
                for header, batch in rebuild(opened.read_group(number), recompress=True):
                    segment.write(batch)
                    records += header.record_count
            segment.flush()
            os.fsync(segment.fileno())
            written = segment.tell()
        opened.close()
        size += written
        on_segment(written)
    manifest = part.manifest
    return Restored(
        manifest.topic,
        manifest.partition,
        manifest.start_offset,
        manifest.end_offset,
        records,
        size,
        len(part.files),
    )
