"""Cutting a log's end: for followers that have more than their leader, and for repair. And emptying
a log, for followers whose leader starts after their end.

Steps of a cut (see `steps.py`), none of which waits for the disk on the owner's thread:

    1. The batch at which to cut is found.
    2. The log's own files are synced, and the journal forgets the log: no replay brings back what
       is cut off.
    3. The recovery point is saved at the cut: offsets that are appended again must not pass for
       recovered already.
    4. The log ends at the cut, for readers too. Whole segments after it are renamed for the sweep.
    5. The file that is cut, its indexes and the names are made durable, and the producers and the
       versions of keys are read again.

Nothing may be appended meanwhile: an append to a log that is being cut is refused. After a crash
before the end the log may have its old end, and the caller has to truncate it again.

`start_at` empties a log. Steps 2 and 3 are the same, with the recovery point 0: from here on,
recovery scans the whole log, cuts it at the first gap between segments, and finds the leader epochs
in its batches. So after a crash the log is a prefix of the old one, or empty with or without its
new start, and its epochs match it in each case.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import BatchHeader
from millstream.storage.checkpointing import save_recovery_point
from millstream.storage.flush import sync_segments
from millstream.storage.log import Log
from millstream.storage.producer_replay import read_producers
from millstream.storage.producers import ProducerStates
from millstream.storage.retention import delete_files, delete_snapshots
from millstream.storage.segment import Segment
from millstream.storage.steps import Steps
from millstream.storage.version_replay import read_versions


class _Cut(NamedTuple):
    """Where a log is to end."""

    segments: list[Segment]  # those that stay
    end_offset: int
    position: int | None  # in the last of them; None if that stays whole


def truncate(log: Log, offset: int, *, now_ms: int = 0) -> Steps[None]:
    """End the log at `offset` or, if that is inside a batch, before the batch."""
    log.check()
    if offset >= log.log_end_offset:
        return
    log.generation += 1  # a flush or a cleaning that began before is void
    generation = log.generation
    log.is_truncating = True
    try:
        cut = yield from _find(log, offset)
        yield from sync_segments(log, now_ms)
        if log.log_id is not None:
            yield partial(log.directory.journal.void, log.log_id)
        _check_unchanged(log, generation)
        log.recovery_point = min(log.recovery_point, cut.end_offset)
        yield from save_recovery_point(log, end_offset=cut.end_offset)
        _check_unchanged(log, generation)
        _end_at(log, cut)
        yield partial(_make_durable, log, cut)
        log.names_synced = log.names_changed
        log.producers, segments = yield partial(read_producers, log)
        log.set_segments(segments)
        if log.versions is not None:
            log.versions = yield partial(read_versions, log)
    except OSError as error:
        raise log.storage_error("truncate", error) from error
    finally:
        log.is_truncating = False


def start_at(log: Log, offset: int, *, now_ms: int = 0) -> Steps[None]:
    """Remove all records: the log is empty, and starts and ends at `offset`."""
    log.check()
    log.generation += 1
    generation = log.generation
    log.is_truncating = True
    try:
        if log.has_files:
            yield from sync_segments(log, now_ms)
            if log.log_id is not None:
                yield partial(log.directory.journal.void, log.log_id)
            _check_unchanged(log, generation)
            log.recovery_point = 0
            yield from save_recovery_point(log, end_offset=offset)
            _check_unchanged(log, generation)
        _empty(log, offset, now_ms)
        if log.has_files:
            yield partial(log.directory.fs.sync_directory, log.path)
            log.names_synced = log.names_changed
    except OSError as error:
        raise log.storage_error("empty", error) from error
    finally:
        log.is_truncating = False


def _empty(log: Log, offset: int, now_ms: int) -> None:
    """Owner's thread: nobody sees a record any more."""
    directory = log.directory
    log.generation += 1
    log.log_start_offset = log.log_end_offset = log.flushed_offset = log.recovery_point = offset
    log.epochs.clear()
    log.producers = ProducerStates()
    log.versions = None
    new = Segment.without_file(
        directory.handles, log.path, offset, now_ms=now_ms, config=log.config
    )
    if log.has_files:
        # The newest first: what a crash leaves of these names is a prefix of the log.
        _delete(log, log.segments)
        delete_snapshots(log, list(log.snapshots))
        log.drop_version_snapshot()
        new.create_file()
        log.names_changed += 1
    log.set_segments([new])
    log.forget_positions()
    log.match_versions()


def _find(log: Log, offset: int) -> Steps[_Cut]:
    kept = [segment for segment in log.segments if segment.base_offset < offset]
    found: tuple[int, BatchHeader] | None = None
    if kept:
        found = yield partial(kept[-1].locate, offset, may_block=True)
    if found is None:
        return _Cut(kept, offset, None)
    return _Cut(kept, found[1].base_offset, found[0])


def _check_unchanged(log: Log, generation: int) -> None:
    log.check()
    if log.generation != generation:
        raise ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{log.topic}-{log.partition} is being truncated by somebody else",
        )


def _end_at(log: Log, cut: _Cut) -> None:
    """Owner's thread: nobody sees more than what stays."""
    log.generation += 1  # a thread in the middle of a read begins again
    log.log_end_offset = log.flushed_offset = cut.end_offset
    log.log_start_offset = min(log.log_start_offset, cut.end_offset)
    log.epochs.truncate_from_end(cut.end_offset)
    kept = list(cut.segments)
    removed = log.segments[len(kept) :]
    if cut.position is not None:
        kept[-1].cut(cut.position)
    if not kept:
        # Files of its name, if any, are renamed first.
        removed = _delete(log, removed)
        handles = log.directory.handles
        kept = [Segment.create(handles, log.path, cut.end_offset, now_ms=0, config=log.config)]
    log.set_segments(kept)
    # A thread that began to read before this generation adds no position any more.
    log.forget_positions()
    _delete(log, removed)
    delete_snapshots(log, [it for it in log.snapshots if it > cut.end_offset])
    log.names_changed += 1


def _delete(log: Log, segments: list[Segment]) -> list[Segment]:
    for segment in reversed(segments):
        delete_files(log, segment)
    return []


def _make_durable(log: Log, cut: _Cut) -> None:
    with log.held():
        if cut.position is not None:
            cut.segments[-1].cut_files(cut.position, cut.end_offset)
        log.drop_version_snapshot()
        log.directory.fs.sync_directory(log.path)
