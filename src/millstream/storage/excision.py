"""Excision: removes the records at given offsets from a log, wherever they are in its files.

A segment that has such records is copied without them, and the copy takes its place, as in
compaction (`cleaner_segment.py`); the active segment is closed first. Batches stay, if need be
without records: so offsets, producers' sequences, transactions and leader epochs are what they
were. The journal has copies of recent appends, and is erased too.

A log is looked through, not marked: `Excisor` remembers only in memory which logs it has seen
without these records. After a restart it looks again, and so it also finds records that came back
with a log directory from a backup, or from a replica that had them still.

Threads. It runs in the cleaner's thread, so that a log is never cleaned and excised at once, and
reaches into the log only through `on_owner`; see `cleaner.py`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from millstream.config.excised import ExcisedOffsets, parse_excised
from millstream.errors import ApiError, CorruptBatch, FileGone, LogGone
from millstream.records.batch import HEADER_SIZE_BYTES, BatchHeader, verify_crc
from millstream.records.compression import decompress
from millstream.records.record import Record, decode_records, keep_records
from millstream.storage.cleaner_plan import CleaningPlan
from millstream.storage.cleaner_segment import (
    CleanedSegment,
    CleaningAborted,
    storage_failed,
    swap,
)
from millstream.storage.flush import sync_segments
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.steps import run_from_thread
from millstream.storage.version_replay import build_versions

logger = logging.getLogger(__name__)

COPY_BYTES = 1024 * 1024
RETRY_MS = 60_000  # after a failure that does not pass by itself


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """A segment that had excised records, before and after."""

    base_offset: int
    bytes_before: int
    bytes_after: int
    sha256_before: str
    sha256_after: str


@dataclass(slots=True)
class LogExcision:
    """What was done to one log."""

    topic: str
    partition: int
    wanted: ExcisedOffsets
    removed: list[int] = field(default_factory=list)  # the offsets of the records
    segments: list[RewrittenSegment] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the log has got as far as the last of these offsets: a follower may yet copy
        them."""
        return self.log_end_offset > self.wanted.ranges.last


class _Seen(NamedTuple):
    """A log was looked through."""

    setting: tuple[str, ...]
    generation: int  # a truncated log may copy them again
    grows_from: int  # its end, if it has not got as far as the last offset; else -1


class Excisor:
    """Excises logs, one at a time."""

    def __init__(
        self,
        *,
        on_owner: Callable[[Callable[[], Any]], Any] = lambda action: action(),
        now_ms: Callable[[], int],
    ) -> None:
        self._on_owner = on_owner
        self._now_ms = now_ms
        self._seen: dict[Log, _Seen] = {}
        self._erased: dict[
            Log, tuple[str, ...]
        ] = {}  # the setting for which the journal was erased
        self._retry_ms: dict[Log, int] = {}  # not before

    def pending(self, logs: list[Log]) -> list[Log]:
        """Owner's thread: those that may have records to excise."""
        for noted in (self._seen, self._erased, self._retry_ms):
            for log in noted.keys() - set(logs):
                del noted[log]
        now_ms = self._now_ms()
        return [
            log
            for log in logs
            if log.config.millstream_excised_offsets
            and log.directory.failure is None
            and self._retry_ms.get(log, 0) <= now_ms
            and not self._is_done(log)
        ]

    def _is_done(self, log: Log) -> bool:
        seen = self._seen.get(log)
        return (
            seen is not None
            and seen.setting == log.config.millstream_excised_offsets
            and seen.generation == log.generation
            and seen.grows_from in (-1, log.log_end_offset)
        )

    def excise(self, log: Log) -> LogExcision | None:
        """Remove the records that the topic's setting names. None if the log changed meanwhile, and
        is to be looked at again."""
        name = log.topic, log.partition
        try:
            return self._excise(log)
        except (CleaningAborted, FileGone, FileNotFoundError, LogGone) as reason:
            logger.info("excision in %s-%d is repeated: %s", *name, reason)
            return None
        except (CorruptBatch, ApiError) as error:
            logger.error("records of %s-%d cannot be excised now: %s", *name, error)
        except OSError as error:
            self._on_owner(partial(storage_failed, log, error))
        self._retry_ms[log] = self._now_ms() + RETRY_MS
        return None

    def _excise(self, log: Log) -> LogExcision:
        setting, generation, wanted = self._on_owner(partial(_wanted, log))
        done = LogExcision(log.topic, log.partition, wanted)
        if wanted:
            self._on_owner(partial(self._close_active_segment, log, wanted))
            affected = [segment for segment in log.segments if _has_any(segment, wanted)]
            if affected:
                run_from_thread(sync_segments(log, self._now_ms()), self._on_owner)
            for segment in affected:
                done.segments.append(self._rewrite(log, segment, wanted, done.removed))
            if affected:
                self._remove_old(log)
            if affected or self._erased.get(log) != setting:  # a crash may have left it
                log.directory.journal.erase()
                self._erased[log] = setting
        done.log_start_offset, done.log_end_offset = self._on_owner(
            lambda: (log.log_start_offset, log.log_end_offset)
        )
        grows_from = -1 if done.is_complete else done.log_end_offset
        self._seen[log] = _Seen(setting, generation, grows_from)
        if done.removed:
            logger.info(
                "%s-%d: excised %d records from %d segments",
                *(log.topic, log.partition, len(done.removed), len(done.segments)),
            )
        return done

    def _close_active_segment(self, log: Log, wanted: ExcisedOffsets) -> None:
        """Only closed segments are replaced."""
        log.check()
        if log.is_truncating:
            raise CleaningAborted(f"{log.topic}-{log.partition} is being truncated")
        active = log.active_segment
        if wanted.ranges.overlaps(active.base_offset, log.log_end_offset - 1):
            log.roll(self._now_ms())

    def _rewrite(
        self, log: Log, segment: Segment, wanted: ExcisedOffsets, removed: list[int]
    ) -> RewrittenSegment:
        plan = self._on_owner(partial(_plan, log, segment, self._now_ms()))
        cleaned = CleanedSegment(plan, segment.base_offset)
        before, after = hashlib.sha256(), hashlib.sha256()
        gone: list[int] = []
        try:
            for old, new in _copies(segment, wanted, gone):
                before.update(old)
                after.update(new)
                cleaned.append(memoryview(new))
            for aborted in segment.read_aborted():
                cleaned.note_aborted(aborted)
            new_segment = cleaned.finish()
            swap(plan, [segment], new_segment, self._on_owner)
        except BaseException:
            if cleaned.segment.suffix != "" and cleaned.segment not in log.segments:
                cleaned.discard()
            raise
        removed += gone
        return RewrittenSegment(
            segment.base_offset,
            segment.size,
            new_segment.size,
            before.hexdigest(),
            after.hexdigest(),
        )

    def _remove_old(self, log: Log) -> None:
        """The old files, and the versions of keys that are gone."""
        log.directory.sweep()
        if log.versions is not None:
            self._on_owner(partial(_forget_versions, log))
            run_from_thread(build_versions(log), self._on_owner)


def _wanted(log: Log) -> tuple[tuple[str, ...], int, ExcisedOffsets]:
    setting = log.config.millstream_excised_offsets
    return setting, log.generation, parse_excised(setting).get(log.partition, ExcisedOffsets())


def _forget_versions(log: Log) -> None:
    log.versions = None
    log.drop_version_snapshot()


def _plan(log: Log, segment: Segment, now_ms: int) -> CleaningPlan:
    """Owner's thread: what the replacement of one closed segment needs to know."""
    if segment not in log.segments[:-1]:
        raise CleaningAborted(f"a segment of {log.topic}-{log.partition} is gone")
    following = log.segments[log.segments.index(segment) + 1]
    return CleaningPlan(
        log=log,
        generation=log.generation,
        config=log.config,
        now_ms=now_ms,
        segments=(segment,),
        first_dirty_offset=segment.base_offset,
        upper_bound=following.base_offset,
        clean_bytes=0,
        dirty_bytes=segment.size,
        is_overdue=False,
    )


def _has_any(segment: Segment, wanted: ExcisedOffsets) -> bool:
    """Whether a closed segment has a record to excise."""
    with suppress(StopIteration):
        return bool(next(_batches_with(segment, wanted)))
    return False


def _batches_with(
    segment: Segment, wanted: ExcisedOffsets
) -> Iterator[tuple[int, BatchHeader, list[Record]]]:
    """(position, header, records) of the batches that have records to excise."""
    start, looked_at = 0, -1  # the position to go on from, and the last offset before it
    for first, last in wanted.ranges.between(segment.base_offset, wanted.ranges.last):
        if last <= looked_at:
            continue
        start = max(start, segment.floor_position(first, may_block=True))
        for position, header in segment.walk(start, may_block=True):
            start, looked_at = position, header.base_offset - 1
            if header.base_offset > last:
                break
            if header.record_count and not header.is_control and header.last_offset >= first:
                records = _records_at(segment, position, header)
                if any(wanted.removes(it.offset, header.leader_epoch) for it in records):
                    yield position, header, records
        else:
            return  # the segment has no more batches


def _records_at(segment: Segment, position: int, header: BatchHeader) -> list[Record]:
    batch = segment.read_at(header.size_bytes, position, may_block=True)
    verify_crc(batch, 0, header)
    section = memoryview(batch)[HEADER_SIZE_BYTES:]
    return decode_records(header, decompress(section, header.compression))


def _copies(
    segment: Segment, wanted: ExcisedOffsets, removed: list[int]
) -> Iterator[tuple[bytes | bytearray, bytes | bytearray]]:
    """The bytes of a segment in pieces of whole batches, each as it was and as it is to be."""
    start = 0
    for position, header, records in _batches_with(segment, wanted):
        for piece in _pieces(segment, start, position):
            yield piece, piece
        gone = {it.offset for it in records if wanted.removes(it.offset, header.leader_epoch)}
        kept = [record for record in records if record.offset not in gone]
        removed += sorted(gone)
        start = position + header.size_bytes
        old = segment.read_at(header.size_bytes, position, may_block=True)
        yield old, keep_records(header, kept)
    for piece in _pieces(segment, start, segment.size):
        yield piece, piece


def _pieces(segment: Segment, start: int, end: int) -> Iterator[bytes | bytearray]:
    """The bytes between two batches, in pieces of whole batches."""
    first = start
    for position, header in segment.walk(start, may_block=True, end=end):
        after = position + header.size_bytes
        if after - first >= COPY_BYTES:
            yield segment.read_at(after - first, first, may_block=True)
            first = after
    if first < end:
        yield segment.read_at(end - first, first, may_block=True)
