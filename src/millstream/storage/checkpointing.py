"""Saving recovery points, start offsets and high watermarks, off the owner's thread.

    checkpoint = Checkpoint.prepare(directory, logs, high_watermarks)    on the owner's thread
    checkpoint.execute()                                                 on any thread: blocks
    checkpoint.complete()                                                on the owner's thread

Leader epochs and indexes below a recovery point are made durable before the recovery point itself,
so a recovery point is valid after a crash at any moment. Checkpoints of a directory may overtake
each other on their threads: an older one is a no-op after a newer one. Truncation and compaction
rely on this when they save their own recovery point.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.storage import names
from millstream.storage.checkpoints import TopicPartition, encode_offsets
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import SyncBatch
from millstream.storage.log import Log
from millstream.storage.segment import Segment

logger = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class SavedLog(NamedTuple):
    """A log in a checkpoint."""

    log: Log
    generation: int
    recovery_point: int
    epochs: tuple[tuple[int, int], ...]
    sealed: list[Segment]


class Checkpoint:
    """See the module."""

    def __init__(
        self, directory: LogDirectory, saved: list[SavedLog], first: SyncBatch, then: SyncBatch
    ) -> None:
        self._directory = directory
        self._saved = saved
        self._first = first
        self._then = then
        directory.checkpoints_prepared += 1
        self._number = directory.checkpoints_prepared
        self.error: OSError | None = None

    @classmethod
    def prepare(
        cls,
        directory: LogDirectory,
        logs: Sequence[Log],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> Checkpoint:
        first = SyncBatch(directory.fs, directory.path)
        saved = [
            SavedLog(
                log,
                log.generation,
                log.recovery_point,
                log.epochs.entries,
                log.save_for_recovery(first),
            )
            for log in logs
        ]
        then = SyncBatch(directory.fs, directory.path)
        for name, offsets in (
            (names.RECOVERY_POINTS, {_key(log): log.recovery_point for log in logs}),
            (names.LOG_START_OFFSETS, _start_offsets(logs)),
            (names.HIGH_WATERMARKS, _high_watermarks(logs, high_watermarks)),
        ):
            then.replace(f"{directory.path}/{name}", encode_offsets(offsets))
        return cls(directory, saved, first, then)

    def execute(self) -> None:
        """Never raises for a disk error: see `error`."""
        directory = self._directory
        with directory.checkpoint_lock:
            if self._number < directory.checkpoints_executed:
                return
            directory.checkpoints_executed = self._number
            try:
                self._first.commit()
                self._then.commit()
            except OSError as error:
                self.error = error

    def complete(self) -> None:
        """Update the logs, or fail the directory. A full disk is not a failure: the old checkpoint
        stays valid, and recovery reads more than necessary."""
        if self.error is not None:
            if self.error.errno not in DISK_FULL:
                self._directory.fail(self.error)
            else:
                logger.warning("no checkpoint of %s: %s", self._directory, self.error)
            return
        if self._number < self._directory.checkpoints_executed:
            return  # the disk has a newer one
        for log, generation, recovery_point, epochs, sealed in self._saved:
            if generation == log.generation:
                log.saved_recovery_point = recovery_point
                log.epochs.note_saved(epochs)
                for segment in sealed:
                    segment.indexes_synced = True


def _key(log: Log) -> TopicPartition:
    return log.topic, log.partition


def _start_offsets(logs: Sequence[Log]) -> dict[TopicPartition, int]:
    """Start offsets inside a segment; the others follow from the segment's name."""
    return {
        _key(log): log.log_start_offset
        for log in logs
        if log.log_start_offset > log.segments[0].base_offset
    }


def _high_watermarks(
    logs: Sequence[Log], known: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {
        _key(log): min(known.get(_key(log), log.flushed_offset), log.log_end_offset) for log in logs
    }
