"""New logs: their files are made in any thread, then the owner takes the logs over.

    <topic>-<partition>/                    a log of this name exists from here on
    <topic>-<partition>/partition.metadata  the topic's id
    <topic>-<partition>/00000000000000000000.log

Nothing is synced. A log becomes durable with its first flush, which syncs these names, the
directory's own, and the bytes of `partition.metadata`: until then there is nothing in it to lose. A
crash before may leave any part of this. The next start opens it as an empty log, whose topic id
(`write_topic_ids`) the metadata supply if it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from millstream.config.topic import TopicConfig
from millstream.storage import checkpoints, names
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import SyncBatch, write_fully
from millstream.storage.log import Log
from millstream.storage.segment import Segment


class NewLog(NamedTuple):
    """A log to create."""

    topic: str
    partition: int
    topic_id: UUID
    config: TopicConfig


def make_log(directory: LogDirectory, new: NewLog, *, now_ms: int) -> Log:
    """An empty log with its files. Raises `OSError`; may run on any thread."""
    log = Log(directory, *new)
    fs = directory.fs
    fs.make_directory(log.path)
    fd = fs.open(f"{log.path}/{names.PARTITION_METADATA}", create=True)
    try:
        # Of the same length whatever the id, so that nothing of an older file is left.
        write_fully(fs, fd, (checkpoints.encode_partition_metadata(new.topic_id),), 0)
    finally:
        fs.close(fd)
    segment = Segment.create(directory.handles, log.path, 0, now_ms=now_ms, config=new.config)
    log.names_changed = 1
    log.is_new = True
    log.set_segments([segment])
    log.last_flush_ms = now_ms
    return log


def write_topic_ids(directory: LogDirectory, topic_ids: Mapping[Log, UUID]) -> None:
    """Give logs of one directory, which do not know theirs, a topic id, durably. Blocks."""
    batch = SyncBatch(directory.fs, directory.path)
    for log, topic_id in topic_ids.items():
        content = checkpoints.encode_partition_metadata(topic_id)
        batch.replace(f"{log.path}/{names.PARTITION_METADATA}", content)
        log.set_topic_id(topic_id)
    batch.commit()
