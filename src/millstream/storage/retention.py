"""Removing from a log: from its start by age and size, from its end by truncation.

Retention takes whole sealed segments, oldest first. Their files get the suffix `.deleted` at once
and are unlinked later, by `LogDirectories.sweep`, off the owner's thread: unlinking a gigabyte can
take long. A crash in between is no matter: start-up removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.storage import names
from millstream.storage.producer_replay import rebuild_producers
from millstream.storage.segment import Segment

if TYPE_CHECKING:
    from millstream.storage.log import Log

logger = logging.getLogger(__name__)


def apply(log: Log, now_ms: int, high_watermark: int) -> int:
    """Delete what is past its time, over the size, or before the log's start."""
    count = _expired_count(log, now_ms)
    if count == len(log.segments) and log.active_segment.size:
        log.roll(now_ms)  # the active one may go too, but the log's end must not be forgotten
    segments = log.segments
    count = min(count, len(segments) - 1)
    while count and segments[count].base_offset > high_watermark:
        count -= 1
    if not count:
        return 0
    if log.names_unsynced:
        # The new segment's name keeps the log's end: it must be durable before old names go.
        log.directory.fs.sync_directory(log.path)
        log.names_synced = log.names_changed
    _sync_snapshot(log, segments[count].base_offset)
    removed = segments[:count]
    log.set_segments(segments[count:])
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.flushed_offset = max(log.flushed_offset, log.log_start_offset)
    # Not the log's start, which may be past bytes that only the journal has: they say where the
    # log ends.
    log.recovery_point = max(log.recovery_point, log.segments[0].base_offset)
    log.epochs.truncate_from_start(log.log_start_offset)
    for segment in removed:
        delete_files(log, segment)
    delete_snapshots(log, [it for it in log.snapshots if it < log.segments[0].base_offset])
    log.names_changed += 1
    size = sum(segment.size for segment in removed)
    logger.info(
        "%s-%d: retention removed %d segments (%d bytes); the log starts at %d",
        log.topic,
        log.partition,
        count,
        size,
        log.log_start_offset,
    )
    return size


def _sync_snapshot(log: Log, offset: int) -> None:
    """Once the segments before it are gone, nothing else tells of their producers."""
    if offset in log.snapshots:
        path = names.offset_file(log.path, offset, names.SNAPSHOT_SUFFIX)
        log.directory.fs.sync_all(log.directory.path, (path, log.path))


def _expired_count(log: Log, now_ms: int) -> int:
    """How many of the oldest segments may go."""
    config, segments = log.config, log.segments
    count = 0
    for following in segments[1:]:
        if following.base_offset > log.log_start_offset:
            break
        count += 1  # all of it lies before the log's start
    if not config.delete:
        return count
    if config.retention_ms >= 0:
        while count < len(segments) and _is_older(log, segments[count], now_ms):
            count += 1
    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[count:]) - config.retention_bytes
        while count < len(segments) - 1 and excess >= segments[count].size:
            excess -= segments[count].size
            count += 1
    return count


def _is_older(log: Log, segment: Segment, now_ms: int) -> bool:
    if segment.size == 0:
        return False
    segment.load_timestamps()
    newest = segment.max_timestamp
    if newest is None or newest < 0:
        newest = log.directory.fs.modified_ms(segment.handle.path)
    return now_ms - newest > log.config.retention_ms


def delete_files(log: Log, segment: Segment) -> None:
    """Rename the segment's files, and leave the rest to the sweep."""
    segment.change_suffix(names.DELETED_SUFFIX)
    segment.close()
    log.directory.transaction_indexes.forget(segment)
    for suffix in names.SEGMENT_SUFFIXES:
        log.directory.add_garbage(segment.path(suffix))


def delete_snapshots(log: Log, offsets: Iterable[int]) -> None:
    """Remove these snapshots of the producers: nothing may be replayed from there any more."""
    for offset in offsets:
        log.snapshots.remove(offset)
        log.directory.fs.unlink(names.offset_file(log.path, offset, names.SNAPSHOT_SUFFIX))


def truncate(log: Log, offset: int) -> None:
    """Cut the log so that it ends at `offset` or, if that is inside a batch, before the batch."""
    if offset >= log.log_end_offset:
        return
    log.settle()
    kept = [segment for segment in log.segments if segment.base_offset < offset]
    found = kept[-1].locate(offset, may_block=True) if kept else None
    end_offset = found[1].base_offset if found else offset
    # Saved before the cut: appended anew, these offsets must not pass for recovered already.
    log.recovery_point = end_offset
    log.directory.checkpoint()
    log.generation += 1
    log.forget_positions()
    for segment in reversed(log.segments[len(kept) :]):
        delete_files(log, segment)
    if not kept:
        handles, config = log.directory.handles, log.config
        kept = [Segment.create(handles, log.path, offset, now_ms=0, config=config)]
    elif found:
        kept[-1].truncate(found[0])
        kept[-1].cut_indexes(end_offset)
    log.set_segments(kept)
    delete_snapshots(log, [it for it in log.snapshots if it > end_offset])
    log.directory.fs.sync_directory(log.path)
    log.log_end_offset = log.flushed_offset = end_offset
    log.log_start_offset = min(log.log_start_offset, end_offset)
    log.epochs.truncate_from_end(end_offset)
    rebuild_producers(log)
