"""New logs. They exist in memory alone; their first append creates the files (`Log.create_files`):

    <topic>-<partition>/                    a log of this name exists from here on
    <topic>-<partition>/partition.metadata  the topic's id
    <topic>-<partition>/00000000000000000000.log

So the creation of a thousand partitions does not wait for the disk. A clean stop creates the files
of all logs: it leaves a directory for every partition.

Nothing is synced. A log becomes durable with its first flush, which syncs these names, the
directory's own, and the bytes of `partition.metadata`: until then there is nothing in it to lose. A
crash before may leave any part of this. The next start opens it as an empty log, whose topic id
(`write_topic_ids`) the metadata supplies if it is missing; a log without files is created again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from millstream.config.topic import TopicConfig
from millstream.storage import checkpoints, names
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import SyncBatch
from millstream.storage.log import Log
from millstream.storage.segment import Segment


class NewLog(NamedTuple):
    """A log to create."""

    topic: str
    partition: int
    topic_id: UUID
    config: TopicConfig


def new_log(directory: LogDirectory, new: NewLog, *, now_ms: int) -> Log:
    """An empty log without files."""
    log = Log(directory, *new)
    log.has_files = False
    log.last_flush_ms = now_ms
    log.match_versions()
    log.set_segments(
        [Segment.without_file(directory.handles, log.path, 0, now_ms=now_ms, config=new.config)]
    )
    return log


def write_topic_ids(directory: LogDirectory, topic_ids: Mapping[Log, UUID]) -> None:
    """Give logs of one directory, which do not know theirs, a topic id, durably. Blocks."""
    batch = SyncBatch(directory.fs, directory.path)
    for log, topic_id in topic_ids.items():
        content = checkpoints.encode_partition_metadata(topic_id)
        batch.replace(f"{log.path}/{names.PARTITION_METADATA}", content)
        log.set_topic_id(topic_id)
    batch.commit()
