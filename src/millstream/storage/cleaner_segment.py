"""A segment written by compaction, and how it replaces the original segments.

    1. The new segment is written beside the old ones as `<base>.log.cleaned` (and its indexes
       likewise), and synced.
    2. The recovery point is saved past the old segments: no journal replay restores their bytes.
    3. The new segment is renamed to `.swap`: from here on it counts.
    4. The old segments are renamed to `.deleted`, and the log reads the new one. Snapshots of the
       producers from before the new one's end go: they may tell of open transactions whose records
       and marker the cleaning took.
    5. `.swap` is dropped from its names.

The directory is synced after each renaming, so a crash finds the steps done in this order.
Recovery (`replacement.py`) removes `.cleaned` and `.deleted` files, and where it finds `.swap` does
what is left to do. The new segment always ends where the old ones ended (its last batch stays, if
need be empty): so recovery knows from the `.swap` file alone which segments it replaces.

Names change on the owner's thread, which is quick; what waits for the disk runs in the cleaner's. A
log is deleted on the owner's thread too, so its names never change after that: its path may belong
to another log. The cleaner's own thread works there only while it holds the log.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from millstream.errors import LogGone, StorageError
from millstream.records._walk import index_points
from millstream.records.batch import NO_TIMESTAMP
from millstream.storage import names
from millstream.storage.checkpointing import save_recovery_point
from millstream.storage.cleaner_plan import CleaningPlan
from millstream.storage.filesystem import write_fully
from millstream.storage.log import Log
from millstream.storage.retention import delete_files, delete_snapshots
from millstream.storage.segment import Segment
from millstream.storage.steps import Steps, run_from_thread
from millstream.storage.transactions import AbortedTransaction

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnOwner = Callable[[Callable[[], T]], T]


class CleaningAborted(StorageError):
    """The log changed during the cleaning (truncated, deleted, shortened); nothing is lost."""


class CleanedSegment:
    """The new segment while it is written, in the cleaner's thread."""

    def __init__(self, plan: CleaningPlan, base_offset: int) -> None:
        self._log = plan.log
        self._fs = plan.log.directory.fs
        with plan.log.held():
            self.segment = Segment.create(
                plan.log.directory.handles,
                plan.log.path,
                base_offset,
                now_ms=plan.now_ms,
                config=plan.config,
                suffix=names.CLEANED_SUFFIX,
            )
            self._fd = self._fs.open(self.segment.handle.path)
        self._interval_bytes = plan.config.index_interval_bytes
        self._bytes_since_point = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset

    def append(self, batches: memoryview) -> None:
        """Write whole batches and index them."""
        segment = self.segment
        assert segment.index is not None
        write_fully(self._fs, self._fd, (batches,), segment.size)
        points, self._bytes_since_point, self._max_timestamp, self._max_timestamp_offset = (
            index_points(
                batches,
                len(batches),
                self._interval_bytes,
                self._bytes_since_point,
                self._max_timestamp,
                self._max_timestamp_offset,
            )
        )
        for last_offset, position, timestamp, timestamp_offset in points:
            segment.index.append(last_offset - segment.base_offset, segment.size + position)
            segment.max_timestamp, segment.max_timestamp_offset = timestamp, timestamp_offset
            segment.append_time_entry()
        segment.size += len(batches)

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        self.segment.note_aborted(aborted)

    def finish(self) -> Segment:
        """Sync the files; their names become durable with the first step of the swap."""
        segment = self.segment
        self._fs.fdatasync(self._fd)
        self.close()
        segment.max_timestamp = self._max_timestamp
        segment.max_timestamp_offset = self._max_timestamp_offset
        segment.synced_bytes = segment.durable_bytes = segment.verified_bytes = segment.size
        with self._log.held():
            segment.seal()
            segment.sync_indexes()
        return segment

    def close(self) -> None:
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """The cleaning failed: remove what was written. (A deleted log's files go with it.)"""
        self.close()
        self.segment.close()
        with suppress(LogGone), self._log.held():
            for suffix in names.SEGMENT_SUFFIXES:
                path = self.segment.path(suffix)
                if self._fs.exists(path):
                    self._fs.unlink(path)


def swap(plan: CleaningPlan, old: list[Segment], new: Segment, on_owner: OnOwner[None]) -> None:
    """Replace `old` by `new`, still `.cleaned`; returns when that is durable."""

    def sync_names() -> None:
        with plan.log.held():
            new.fs.sync_directory(plan.log.path)

    def count_from_now_on() -> Steps[None]:
        log = plan.log
        _check_unchanged(plan, old)
        assert plan.upper_bound <= log.recovery_point, f"{log!r} is not synced up to there"
        # Replay ignores what lies below, and recovery takes a hole between offsets there for
        # compaction's work.
        if log.saved_recovery_point < plan.upper_bound:
            yield from save_recovery_point(log)
            _check_unchanged(plan, old)
        new.change_suffix(names.SWAP_SUFFIX)

    def replace() -> None:
        _check_unchanged(plan, old)
        replace_segments(plan, old, new)

    def drop_suffix() -> None:
        # Else the log was deleted, or retention has taken the segment already.
        if not plan.log.is_deleted and new in plan.log.segments:
            new.change_suffix("")

    run_from_thread(count_from_now_on(), on_owner)
    sync_names()
    on_owner(replace)
    sync_names()
    on_owner(drop_suffix)
    sync_names()


def _check_unchanged(plan: CleaningPlan, old: list[Segment]) -> None:
    log = plan.log
    if log.is_deleted:
        raise CleaningAborted(f"{log.topic}-{log.partition} was deleted")
    if log.directory.failure is not None:
        raise CleaningAborted(f"the directory of {log.topic}-{log.partition} has failed")
    if log.is_truncating:
        raise CleaningAborted(f"{log.topic}-{log.partition} is being truncated")
    present = set(map(id, log.segments))
    if log.generation != plan.generation or not all(id(segment) in present for segment in old):
        raise CleaningAborted(
            f"{log.topic}-{log.partition} was truncated or shortened while it was being cleaned"
        )


def storage_failed(log: Log, error: OSError) -> None:
    """Owner's thread. A full disk or a deleted log stops one cleaning; any other error fails the
    directory."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT):
        logger.warning("cleaning of %s-%d stopped: %s", log.topic, log.partition, error)
    else:
        log.directory.fail(error)


def replace_segments(plan: CleaningPlan, old: list[Segment], new: Segment) -> None:
    """Owner's thread: the log reads `new`, and the files of `old` become garbage."""
    log = plan.log
    segments = log.segments
    first = segments.index(old[0])
    following = segments[first + len(old) :]  # the active one at least
    log.set_segments([*segments[:first], new, *following])
    log.forget_positions()
    for segment in old:
        delete_files(log, segment)
    delete_snapshots(log, [it for it in log.snapshots if it < following[0].base_offset])
