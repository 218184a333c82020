"""Deletes segments at a log's start: by age, by size, and after DeleteRecords.

Retention takes whole sealed segments, oldest first. Their files get the suffix `.deleted` at once
and are unlinked later, by `LogDirectories.sweep`, off the owner's thread: unlinking a gigabyte can
take long. After a crash in between, start-up removes them.

It runs in steps (see `steps.py`): names and lists of segments change on the owner's thread, a few
logs at a time; what reads or syncs files runs in any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from millstream.errors import FileGone, MillstreamError
from millstream.storage import names
from millstream.storage.directory import LogDirectory
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.steps import Steps, let_others_work

logger = logging.getLogger(__name__)

LOGS_PER_TURN = 4  # on the owner's thread: each takes a few tenths of a millisecond
LOGS_PER_SYNC = 64


class Candidate(NamedTuple):
    """A log with segments that may have expired."""

    log: Log
    high_watermark: int  # nothing from here on goes
    on_removed: Callable[[], None]  # called on the owner's thread: the log's start has moved
    archived_offset: int | None = None  # only what is below it may expire; None: no archive


class Expired(NamedTuple):
    """The number of expired segments of a log, as seen by another thread."""

    candidate: Candidate
    segments: list[Segment]
    removable: int
    active_size: int
    newest: list[tuple[Segment, tuple[int, int]]]  # largest timestamps that had to be read


class Removal(NamedTuple):
    """The oldest segments of a log, deleted as soon as their replacement is durable."""

    candidate: Candidate
    segments: list[Segment]
    generation: int
    names_changed: int
    paths: list[str]  # to be synced first


def apply_all(candidates: Sequence[Candidate], now_ms: int) -> Steps[int]:
    """Delete segments that are too old, over the size limit, or before the log's start.

    Returns the number of bytes. Logs that cannot be read are skipped. Raises `ApiError` if a
    directory has failed.
    """
    removed_bytes = 0
    for start in range(0, len(candidates), LOGS_PER_SYNC):
        some = candidates[start : start + LOGS_PER_SYNC]
        expired: list[Expired] = yield partial(_find_expired, some, now_ms)
        removals: list[Removal] = []
        for number, each in enumerate(expired):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                yield let_others_work
            removals += _prepare(each, now_ms)
        yield from _sync(removals)
        for number, removal in enumerate(removals):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                yield let_others_work
            removed_bytes += _remove(removal)
    return removed_bytes


def apply(log: Log, now_ms: int) -> Steps[int]:
    """The same for one log, of which all may be deleted. Raises `ApiError` also if it is gone."""
    log.check()
    return apply_all([Candidate(log, log.log_end_offset, lambda: None)], now_ms)


def _find_expired(candidates: Sequence[Candidate], now_ms: int) -> list[Expired]:
    """Logs with expired segments. Reads files."""
    found = []
    for candidate in candidates:
        log = candidate.log
        if log.is_deleted:
            continue
        try:
            expired = _expired(candidate, now_ms)
        except (FileGone, FileNotFoundError):
            continue  # deleted or replaced while this thread looked at it
        except MillstreamError as error:
            logger.warning("no retention of %s-%d: %s", log.topic, log.partition, error)
            continue
        if expired.removable or expired.newest:
            found.append(expired)
    return found


def _expired(candidate: Candidate, now_ms: int) -> Expired:
    """The number of expired segments."""
    log = candidate.log
    config, segments = log.config, log.segments
    newest: list[tuple[Segment, tuple[int, int]]] = []
    active_size = segments[-1].size
    count = 0
    for following in segments[1:]:
        if following.base_offset > log.log_start_offset:
            break
        count += 1  # all of it lies before the log's start
    deleted = count
    if config.delete and config.local_ms_max >= 0:
        while count < len(segments) and segments[count].size:
            if now_ms - _newest_ms(log, segments[count], newest) <= config.local_ms_max:
                break
            count += 1
    if config.delete and config.local_bytes_max >= 0:
        excess = sum(segment.size for segment in segments[count:]) - config.local_bytes_max
        while count < len(segments) - 1 and excess >= segments[count].size:
            excess -= segments[count].size
            count += 1
    if candidate.archived_offset is not None:
        while count > deleted and _end_of(log, segments, count) > candidate.archived_offset:
            count -= 1
    return Expired(candidate, segments, count, active_size, newest)


def _end_of(log: Log, segments: list[Segment], count: int) -> int:
    """Where the first `count` segments end."""
    return segments[count].base_offset if count < len(segments) else log.log_end_offset


def _newest_ms(log: Log, segment: Segment, found: list[tuple[Segment, tuple[int, int]]]) -> int:
    newest = segment.max_timestamp
    if newest is None:
        result = segment.find_max_timestamp()
        found.append((segment, result))
        newest = result[0]
    return newest if newest >= 0 else log.directory.fs.modified_ms(segment.handle.path)


def _prepare(expired: Expired, now_ms: int) -> list[Removal]:
    """Owner's thread: what goes, with what must be durable before, if anything still may go."""
    candidate, segments, count, active_size, newest = expired
    log = candidate.log
    for segment, (timestamp, offset) in newest:
        segment.note_max_timestamp(timestamp, offset)
    if log.is_deleted or log.directory.failure is not None or log.is_truncating:
        return []
    if log.segments[:count] != segments[:count]:
        return []
    if count == len(log.segments) and 0 < log.active_segment.size == active_size:
        log.roll(now_ms)  # the active one can be deleted too, but the log's end must be kept
    segments = log.segments
    count = min(count, len(segments) - 1)
    while count and segments[count].base_offset > candidate.high_watermark:
        count -= 1
    if not count:
        return []
    paths = []
    if log.names_unsynced:
        # The new segment's name keeps the log's end: it must be durable before old names go.
        paths.append(log.path)
    offset = segments[count].base_offset
    if offset in log.snapshots:
        # After the earlier segments are deleted, only the snapshot has their producers.
        paths += [names.offset_file(log.path, offset, names.SNAPSHOT_SUFFIX), log.path]
    return [Removal(candidate, segments[:count], log.generation, log.names_changed, paths)]


def _sync(removals: list[Removal]) -> Steps[None]:
    by_directory: dict[LogDirectory, list[Removal]] = {}
    for removal in removals:
        by_directory.setdefault(removal.candidate.log.directory, []).append(removal)
    for directory, some in by_directory.items():
        paths = dict.fromkeys(path for removal in some for path in removal.paths)
        try:
            yield partial(directory.fs.sync_all, directory.path, paths)
        except OSError as error:
            raise some[0].candidate.log.storage_error("apply retention to", error) from error
        for removal in some:
            log = removal.candidate.log
            if removal.paths:
                log.names_synced = max(log.names_synced, removal.names_changed)


def _remove(removal: Removal) -> int:
    """Owner's thread: the log begins after these segments. Returns their size."""
    log = removal.candidate.log
    count = len(removal.segments)
    if log.is_deleted or log.generation != removal.generation:
        return 0
    if log.segments[:count] != removal.segments:
        return 0  # compacted meanwhile: the next round retries
    log.set_segments(log.segments[count:])
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.flushed_offset = max(log.flushed_offset, log.log_start_offset)
    # Not the log's start, which may be past bytes that only the journal has: they say where the
    # log ends.
    log.recovery_point = max(log.recovery_point, log.segments[0].base_offset)
    log.epochs.truncate_from_start(log.log_start_offset)
    try:
        for segment in removal.segments:
            delete_files(log, segment)
        delete_snapshots(log, [it for it in log.snapshots if it < log.segments[0].base_offset])
    except OSError as error:
        raise log.storage_error("apply retention to", error) from error
    log.names_changed += 1
    size = sum(segment.size for segment in removal.segments)
    logger.info(
        "%s-%d: retention removed %d segments (%d bytes); the log starts at %d",
        log.topic,
        log.partition,
        count,
        size,
        log.log_start_offset,
    )
    removal.candidate.on_removed()
    return size


def delete_files(log: Log, segment: Segment) -> None:
    """Rename the segment's files, and leave the rest to the sweep."""
    segment.change_suffix(names.DELETED_SUFFIX)
    segment.close()
    log.directory.transaction_indexes.forget(segment)
    for suffix in names.SEGMENT_SUFFIXES:
        log.directory.add_garbage(segment.path(suffix))


def delete_snapshots(log: Log, offsets: Iterable[int]) -> None:
    """Remove these producer snapshots: they must not be used for a replay."""
    for offset in offsets:
        log.snapshots.remove(offset)
        path = names.offset_file(log.path, offset, names.SNAPSHOT_SUFFIX)
        log.directory.fs.rename(path, path + names.DELETED_SUFFIX)
        log.directory.add_garbage(path + names.DELETED_SUFFIX)
