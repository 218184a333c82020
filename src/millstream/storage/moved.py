"""Logs that were moved from another log directory: `moved.json`, and two logs of one name.

A moved log has this file until its old place is empty and the checkpoints of its directory have its
offsets. See the crash rule of `moving.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from millstream.errors import StorageError
from millstream.storage import names
from millstream.storage.checkpoints import read_partition_metadata
from millstream.storage.filesystem import FileSystem, read_file, replace_file

if TYPE_CHECKING:
    from millstream.partitions import TopicPartition
    from millstream.storage.directory import LogDirectory
    from millstream.storage.log import Log

VERSION = 0


class Origin(NamedTuple):
    """The content of `moved.json`."""

    directory_id: UUID
    recovery_point: int
    log_start_offset: int
    high_watermark: int


class UnfinishedMove(NamedTuple):
    """A log that was being moved at the last stop."""

    key: TopicPartition
    target: LogDirectory
    path: str  # of the copy

    def is_of(self, log: Log) -> bool:
        """Whether it is this log, and not one of a deleted topic of that name."""
        topic_id = read_partition_metadata(self.target.fs, self.path)
        return topic_id is not None and topic_id == log.topic_id


def read_origins(
    directory: LogDirectory, found: Iterable[TopicPartition]
) -> dict[TopicPartition, Origin]:
    """Of logs that were moved to this directory, and may still be in their old place."""
    origins = {}
    for key in found:
        origin = read_origin(directory.fs, directory.log_path(*key))
        if origin is not None:
            origins[key] = origin
    return origins


class MovedLogs:
    """The logs that have a `moved.json`, at a start."""

    def __init__(self) -> None:
        self._origins: dict[Log, Origin] = {}

    def __bool__(self) -> bool:
        return bool(self._origins)

    def add(self, log: Log, origin: Origin) -> None:
        self._origins[log] = origin

    def are_copies(self, log: Log, other: Log) -> bool:
        """Whether one of these logs of one name was moved from the directory of the other."""
        return self._is_from(log, other) or self._is_from(other, log)

    def choose(self, log: Log, other: Log) -> tuple[Log, Log]:
        """The one that counts, and the other: the copy, unless the original went on: it has a later
        epoch, or more records of the same one."""
        copy, original = (log, other) if self._is_from(log, other) else (other, log)
        went_on = _progress(original) > _progress(copy)
        return (original, copy) if went_on else (copy, original)

    def _is_from(self, log: Log, other: Log) -> bool:
        origin = self._origins.get(log)
        return origin is not None and origin.directory_id == other.directory.directory_id

    def forget(self, live: Iterable[LogDirectory]) -> None:
        """The old places in these directories are empty, and the checkpoints have the logs.
        Blocks."""
        live_ids = {directory.directory_id for directory in live}
        for log, origin in self._origins.items():
            if origin.directory_id in live_ids and not log.is_deleted:
                try:
                    forget_origin(log)
                except OSError as error:
                    log.directory.fail(error)
        self._origins.clear()


def _progress(log: Log) -> tuple[int, int]:
    return log.latest_epoch, log.log_end_offset


def write_origin(fs: FileSystem, path: str, origin: Origin) -> None:
    content = {
        "version": VERSION,
        "directory_id": str(origin.directory_id),
        "recovery_point": origin.recovery_point,
        "log_start_offset": origin.log_start_offset,
        "high_watermark": origin.high_watermark,
    }
    replace_file(fs, f"{path}/{names.MOVED}", json.dumps(content, indent=2).encode() + b"\n")


def read_origin(fs: FileSystem, path: str) -> Origin | None:
    """Where the log in this directory was moved from, if its old place may still have it."""
    try:
        content = json.loads(read_file(fs, f"{path}/{names.MOVED}"))
        return Origin(
            UUID(content["directory_id"]),
            int(content["recovery_point"]),
            int(content["log_start_offset"]),
            int(content["high_watermark"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path}/{names.MOVED} is damaged ({error!r}); if the log is in no other log "
            "directory, delete this file"
        ) from None


def forget_origin(log: Log) -> None:
    """The old place is empty, and the checkpoints of the new one have the log. Blocks."""
    fs, path = log.directory.fs, f"{log.path}/{names.MOVED}"
    with log.held():
        if fs.exists(path):
            fs.unlink(path)
            fs.sync_directory(log.path)
