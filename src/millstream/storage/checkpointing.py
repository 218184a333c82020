"""Saving recovery points, start offsets and high watermarks, off the owner's thread.

    checkpoint = Checkpoint.prepare(directory, logs, high_watermarks)    on the owner's thread
    checkpoint.execute()                                                 on any thread: blocks
    checkpoint.complete()                                                on the owner's thread

Leader epochs and indexes below a recovery point are made durable before the recovery point itself,
so a recovery point is valid after a crash at any moment. Checkpoints of a directory may overtake
each other on their threads: an older one is a no-op after a newer one. Truncation and compaction
rely on this when they save the recovery point of one log (`save_recovery_point`). The age of a
checkpoint is that of its first log: `prepare_steps` takes its logs in several turns.

A log deleted after `prepare` is left out: its name and path may belong to another log when the
checkpoint is executed.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from millstream.errors import LogGone, StorageError
from millstream.partitions import TopicPartition
from millstream.storage import names
from millstream.storage.checkpoints import (
    encode_offsets,
    read_offsets,
)
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import SyncBatch
from millstream.storage.log import Log
from millstream.storage.segment import INDEXED_BYTES_MIN, Segment
from millstream.storage.steps import Steps, let_others_work, run_here
from millstream.storage.version_replay import encode_for_clean_stop

logger = logging.getLogger(__name__)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
LOGS_PER_TURN = 128  # each takes a few microseconds


class SavedLog(NamedTuple):
    """A log in a checkpoint."""

    log: Log
    generation: int
    recovery_point: int
    start_offset: int | None  # None if it is known from the first segment's name
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    sealed: list[Segment]


class Checkpoint:
    """See the module."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._saved: list[SavedLog] = []
        self._first = SyncBatch(directory.fs, directory.path)
        directory.checkpoints_prepared += 1
        self._number = directory.checkpoints_prepared
        self.error: OSError | None = None
        self.was_overtaken = False  # a newer one was executed first: this one has saved nothing

    @classmethod
    def prepare(
        cls,
        directory: LogDirectory,
        logs: Sequence[Log],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> Checkpoint:
        return run_here(cls.prepare_steps(directory, logs, high_watermarks))

    @classmethod
    def prepare_steps(
        cls,
        directory: LogDirectory,
        logs: Sequence[Log],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> Steps[Checkpoint]:
        """The same, a few logs per turn."""
        checkpoint = cls(directory)
        for number, log in enumerate(logs, 1):
            if log.has_files and not log.is_deleted:
                checkpoint._add(log, high_watermarks.get(_key(log), log.flushed_offset))
            if number % LOGS_PER_TURN == 0:
                yield let_others_work
        return checkpoint

    def _add(self, log: Log, high_watermark: int) -> None:
        self._saved.append(
            SavedLog(
                log,
                log.generation,
                log.recovery_point,
                _start_offset(log),
                min(high_watermark, log.log_end_offset),
                log.epochs.entries,
                _write_for_recovery(log, self._first),
            )
        )

    def execute(self) -> None:
        """Never raises for a disk error: see `error`."""
        directory = self._directory
        with directory.checkpoint_lock:
            if self._number < directory.checkpoints_executed:
                self.was_overtaken = True
                return
            directory.checkpoints_executed = self._number
            try:
                self._save_logs()
                self._save_offsets()
            except OSError as error:
                self.error = error

    def _save_logs(self) -> None:
        """What the recovery points stand for, in the directories of logs that are still there."""
        touched = self._first.directories
        gone: set[str] = set()
        with ExitStack() as held:
            for log, *_ in self._saved:
                if log.path in touched:
                    try:
                        held.enter_context(log.held())
                    except LogGone:
                        gone.add(log.path)
            self._first.leave_out(gone)
            self._first.commit()

    def _save_offsets(self) -> None:
        path = self._directory.path
        saved = [(_key(each.log), each) for each in self._saved if not each.log.is_deleted]
        batch = SyncBatch(self._directory.fs, path)
        for name, offsets in (
            (names.RECOVERY_POINTS, {key: each.recovery_point for key, each in saved}),
            (
                names.LOG_START_OFFSETS,
                {key: each.start_offset for key, each in saved if each.start_offset is not None},
            ),
            (names.HIGH_WATERMARKS, {key: each.high_watermark for key, each in saved}),
        ):
            batch.replace(f"{path}/{name}", encode_offsets(offsets))
        batch.commit()

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
        for each in self._saved:
            if each.generation == each.log.generation:
                _note_saved(each.log, each.recovery_point, each.epochs, each.sealed)


def save_recovery_point(log: Log, *, end_offset: int | None = None) -> Steps[None]:
    """Durably save the recovery point of one log, and what it stands for; others stay as they are.

    If the log is about to end at `end_offset`, its saved start and high watermark are lowered to
    that: they would be wrong for the records that are appended there.

    Raises `OSError`, and `LogGone` if the log is deleted meanwhile.
    """
    directory = log.directory
    generation, recovery_point, epochs = log.generation, log.recovery_point, log.epochs.entries
    batch = SyncBatch(directory.fs, directory.path)
    sealed = _write_for_recovery(log, batch)
    directory.checkpoints_prepared += 1
    number = directory.checkpoints_prepared

    def save() -> None:
        with directory.checkpoint_lock, log.held():
            # Those prepared before this one have an older recovery point of the log.
            directory.checkpoints_executed = max(directory.checkpoints_executed, number)
            batch.commit()
            offsets = SyncBatch(directory.fs, directory.path)
            _replace_offset(directory, offsets, names.RECOVERY_POINTS, log, recovery_point)
            if end_offset is not None:
                for name in (names.LOG_START_OFFSETS, names.HIGH_WATERMARKS):
                    _replace_offset(directory, offsets, name, log, end_offset, lower_only=True)
            offsets.commit()

    yield save
    if generation == log.generation:
        _note_saved(log, recovery_point, epochs, sealed)


def _replace_offset(
    directory: LogDirectory,
    batch: SyncBatch,
    name: str,
    log: Log,
    offset: int,
    *,
    lower_only: bool = False,
) -> None:
    """Change the entry of one log in a checkpoint file."""
    path, key = f"{directory.path}/{name}", _key(log)
    offsets = {}
    with suppress(StorageError):  # damaged: nobody would believe it
        offsets = read_offsets(directory.fs, path)
    if not lower_only or offsets.get(key, 0) > offset:
        batch.replace(path, encode_offsets(offsets | {key: offset}))


def _write_for_recovery(log: Log, batch: SyncBatch) -> list[Segment]:
    """Write everything that recovery trusts, before the recovery point is saved.

    Returns the sealed segments whose indexes are synced with the batch.
    """
    log.epochs.save(batch)
    if log.names_unsynced:
        batch.add_directory(log.path)
    active = log.active_segment
    if active.size >= INDEXED_BYTES_MIN:
        active.write_indexes(batch)
    sealed = []
    for segment in reversed(log.segments[:-1]):
        if segment.indexes_synced:
            break
        for path in segment.index_files():
            batch.add_file(path)
        sealed.append(segment)
    return sealed


def write_for_clean_stop(log: Log, batch: SyncBatch) -> None:
    """Write everything that the next start needs to skip scanning the log."""
    active = log.active_segment
    if active.index is None and not active.has_index_files():
        active.wake(now_ms=0)  # Kafka scans a segment without index files, even an empty one
    if active.index is not None:
        active.seal()
        for path in active.index_files():
            batch.add_file(path)
        batch.add_directory(log.path)
    if (len(log.producers) or log.snapshots) and log.log_end_offset not in log.snapshots:
        path = names.offset_file(log.path, log.log_end_offset, names.SNAPSHOT_SUFFIX)
        batch.write(path, log.producers.encode_snapshot())
    versions = encode_for_clean_stop(log)
    if versions is not None:
        batch.replace(*versions)


def _note_saved(
    log: Log, recovery_point: int, epochs: tuple[tuple[int, int], ...], sealed: list[Segment]
) -> None:
    log.saved_recovery_point = recovery_point
    log.epochs.note_saved(epochs)
    for segment in sealed:
        segment.indexes_synced = True


def _key(log: Log) -> TopicPartition:
    return log.topic, log.partition


def _start_offset(log: Log) -> int | None:
    """A start offset inside a segment; otherwise it follows from the segment's name."""
    start = log.log_start_offset
    return start if start > log.segments[0].base_offset else None


def forget_names(directory: LogDirectory, forgotten: Collection[TopicPartition]) -> None:
    """Durably remove entries from the checkpoint files. On any thread; blocks.

    Checkpoints under way cannot bring them back: these leave out logs that are deleted.
    """
    batch = SyncBatch(directory.fs, directory.path)
    with directory.checkpoint_lock:
        for name in names.OFFSET_CHECKPOINTS:
            path = f"{directory.path}/{name}"
            try:
                offsets = read_offsets(directory.fs, path)
            except StorageError:
                continue  # damaged: nobody will believe it
            kept = {key: offset for key, offset in offsets.items() if key not in forgotten}
            if len(kept) < len(offsets):
                batch.replace(path, encode_offsets(kept))
        batch.commit()
