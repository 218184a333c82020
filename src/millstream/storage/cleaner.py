"""Compaction: keeps the last record of each key, as in Kafka.

A cleaning reads the dirty part of a log (see `cleaner_plan.py`) and notes the last offset of each
key in a map of bounded size; when the map is full, the cleaning covers only what was read so far.
Then it copies all segments from the start of the log to that point, small neighbours into one,
without the records that have a later one of the same key, and puts the copies in the place of the
originals (see `cleaner_segment.py`). Offsets never change, nor does the order.

- A tombstone (null value) is kept for `delete.retention.ms`, so that consumers see it:
  the first cleaning that keeps it writes that time, the delete horizon, into its batch.
  With `millstream.conditional.append=version` it is kept forever: it has the version of its key.
- Transactions: see `cleaner_transactions.py`.
- The batch with a producer's last sequence stays, if need be without records: the sequence must
  survive a restart. So does the last batch of each new segment, whose offset is the segment's end.
- A batch whose CRC is wrong stops the cleaning: rewriting it would make the damage look sound.

The records are walked in compiled code without the GIL, a chunk at a time; only batches that are
compressed, transactional or control batches come back to Python, one by one.

Threads. `Cleaner` runs in a thread of its own. It reads sealed segments, which do not change, and
reaches into the log only through `on_owner`, which runs a function on the owner's thread and
returns its result. A log that is deleted meanwhile ends its cleaning before anything is renamed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.config.topic import VERSION_OF_KEY
from millstream.errors import CorruptBatch, FileGone, LogGone
from millstream.records._walk import WALK_DONE, WALK_FULL, OffsetMap, RecordFilter
from millstream.records.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    BatchHeader,
    Buffer,
    parse_header,
)
from millstream.records.compression import compress, decompress
from millstream.records.record import ControlType, assemble_batch, decode_records, keep_records
from millstream.storage import checkpoints, names
from millstream.storage.cleaner_plan import (
    CleaningPlan,
    Survey,
    group_segments,
    load_timestamps,
    plan_filthiest,
)
from millstream.storage.cleaner_segment import (
    CleanedSegment,
    CleaningAborted,
    storage_failed,
    swap,
)
from millstream.storage.cleaner_transactions import CleanedTransactions
from millstream.storage.directory import LogDirectory
from millstream.storage.flush import sync_segments
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.steps import run_from_thread
from millstream.storage.transactions import AbortedTransaction

logger = logging.getLogger(__name__)

MAP_ENTRY_BYTES = 24
# A record can grow this much when its timestamp is rewritten, in a batch of tiny records.
GROWTH_FACTOR_MAX = 3


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The broker's `log.cleaner.*` settings."""

    dedupe_buffer_bytes: int = 134_217_728
    dedupe_load_factor: float = 0.9
    io_buffer_bytes: int = 524_288
    io_max_bytes_per_second: float = float("inf")


@dataclass(slots=True)
class CleaningStats:
    """Statistics of one cleaning."""

    topic: str
    partition: int
    first_dirty_offset: int
    next_dirty_offset: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    segments_before: int = 0
    segments_after: int = 0
    map_utilization: float = 0.0


@dataclass(slots=True)
class Throttle:
    """Keeps reads and writes below a rate, by sleeping."""

    bytes_per_second: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _free_at: float = field(default=0.0, init=False)

    def spend(self, size_bytes: int) -> None:
        now = self.clock()
        if self._free_at > now:
            self.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + size_bytes / self.bytes_per_second


class Cleaner:
    """Cleans one log at a time; aborts soon after `stopping` is set."""

    def __init__(
        self,
        settings: CleanerSettings | None = None,
        *,
        on_owner: Callable[[Callable[[], Any]], Any] = lambda action: action(),
        stopping: threading.Event | None = None,
    ) -> None:
        self._settings = settings or CleanerSettings()
        self._on_owner = on_owner
        self._stopping = stopping or threading.Event()
        self._throttle = Throttle(self._settings.io_max_bytes_per_second, sleep=self._stopping.wait)
        self._uncleanable: set[Log] = set()
        self.dirty_ratio_max = 0.0  # of the logs, when one was last chosen

    @property
    def uncleanable_count(self) -> int:
        return len(self._uncleanable)

    def clean_filthiest(
        self, logs: Callable[[], Iterable[tuple[Log, int]]], now_ms: int
    ) -> CleaningStats | None:
        """Clean the log that needs it most; None if none does.

        `logs`, called on the owner's thread, gives each log with its last stable offset.
        """
        candidates = self._on_owner(partial(self._candidates, logs))
        offsets = read_first_dirty_offsets(log.directory for log, _ in candidates)
        for log, _ in candidates:
            with suppress(CorruptBatch, FileGone, FileNotFoundError):  # the cleaning will find out
                load_timestamps(log)

        def plan() -> Survey:
            # A name in the checkpoint stands for the log that had it when the candidates were
            # listed, or for none if that was deleted since.
            alive = [(log, stable) for log, stable in candidates if not log.is_deleted]
            return plan_filthiest(alive, offsets, now_ms)

        survey = self._on_owner(plan)
        self.dirty_ratio_max = survey.dirty_ratio_max
        chosen = survey.chosen
        if chosen is None:
            return None
        try:
            return self.clean(chosen)
        except (CleaningAborted, FileGone, LogGone) as reason:
            logger.info("cleaning of %s-%d stopped: %s", *_name(chosen), reason)
        except CorruptBatch as error:
            # It stays unchanged, and readable up to the damage, until the next start.
            self._uncleanable.add(chosen.log)
            logger.error("%s-%d cannot be cleaned: %s", *_name(chosen), error)
        except OSError as error:
            self._on_owner(partial(storage_failed, chosen.log, error))
        return None

    def _candidates(self, logs: Callable[[], Iterable[tuple[Log, int]]]) -> list[tuple[Log, int]]:
        listed = list(logs())
        self._uncleanable.intersection_update(log for log, _ in listed)
        return [
            (log, stable_offset)
            for log, stable_offset in listed
            if log.config.compact and log not in self._uncleanable and log.directory.failure is None
        ]

    def clean(self, plan: CleaningPlan) -> CleaningStats:
        """Execute a plan, and record how far the log is clean."""
        stats = CleaningStats(*_name(plan), plan.first_dirty_offset)
        # The recovery point is past what is replaced, so that no replay of the journal brings old
        # bytes back over new segments.
        run_from_thread(sync_segments(plan.log, plan.now_ms), self._on_owner)
        offset_map, latest_offset = self._build_map(plan)
        stats.map_utilization = offset_map.utilization
        stats.next_dirty_offset = latest_offset + 1
        transactions = CleanedTransactions(_aborted_from(plan, plan.segments[0].base_offset))
        chosen = [each for each in plan.segments if each.base_offset <= latest_offset]
        stats.segments_before = len(chosen)
        upper_bound = _end_of(plan, chosen[-1]) if chosen else 0
        for group, end_offset in group_segments(chosen, upper_bound, plan.config):
            pass_ = CopyPass(plan, offset_map, latest_offset, end_offset, transactions, stats)
            self._copy_group(plan, group, pass_)
            stats.segments_after += 1
        _save_first_dirty_offset(plan, stats.next_dirty_offset)
        _log_stats(stats)
        return stats

    # First pass: the last offset of each key

    def _build_map(self, plan: CleaningPlan) -> tuple[OffsetMap, int]:
        """The map, and the last offset that it covers."""
        settings = self._settings
        keys_max = plan.upper_bound - plan.first_dirty_offset
        wanted_bytes = int(keys_max / settings.dedupe_load_factor + 2) * MAP_ENTRY_BYTES
        offset_map = OffsetMap(
            max(min(settings.dedupe_buffer_bytes, wanted_bytes), 4 * MAP_ENTRY_BYTES),
            settings.dedupe_load_factor,
        )
        transactions = CleanedTransactions(_aborted_from(plan, plan.first_dirty_offset))
        latest_offset = plan.first_dirty_offset - 1
        for segment in plan.segments:
            end_offset = _end_of(plan, segment)
            if end_offset <= plan.first_dirty_offset:
                continue
            index = IndexPass(offset_map, plan.first_dirty_offset, transactions, latest_offset)
            start = segment.floor_position(plan.first_dirty_offset, may_block=True)
            self._walk(segment, start, index.take)
            latest_offset = index.latest_offset
            if index.is_full:
                break
            latest_offset = end_offset - 1
        return offset_map, latest_offset

    # Second pass: the copies

    def _copy_group(self, plan: CleaningPlan, group: list[Segment], copy: CopyPass) -> None:
        cleaned = CleanedSegment(plan, group[0].base_offset)
        try:
            copy.target = cleaned
            copy.output = bytearray(GROWTH_FACTOR_MAX * self._settings.io_buffer_bytes)
            for segment in group:
                before = cleaned.segment.size
                self._walk(segment, 0, copy.take)
                self._throttle.spend(cleaned.segment.size - before)
            swap(plan, group, cleaned.finish(), self._on_owner)
        except BaseException:
            if cleaned.segment.suffix != "" and cleaned.segment not in plan.log.segments:
                cleaned.discard()
            raise

    def _walk(self, segment: Segment, position: int, take: Callable[[Buffer], int]) -> None:
        """Feed a segment's bytes from `position` on, in chunks of whole batches.

        `take` returns how many bytes it is done with, or -1 to stop.
        """
        want = self._settings.io_buffer_bytes
        while position < segment.size:
            if self._stopping.is_set():
                raise CleaningAborted("the cleaner is stopping")
            size = min(want, segment.size - position)
            chunk = segment.read_at(size, position, may_block=True)
            self._throttle.spend(len(chunk))
            try:
                taken = take(chunk)
                if taken == 0:
                    want = _size_of_large_batch(chunk, segment.size - position)
            except CorruptBatch as error:
                raise CorruptBatch(
                    f"{segment.handle.path}, in the {len(chunk)} bytes from {position}: {error}"
                ) from None
            if taken < 0:
                return
            if taken > 0:
                want = self._settings.io_buffer_bytes
            position += taken


class IndexPass:
    """Enters the keys of chunks into the map."""

    def __init__(
        self,
        offset_map: OffsetMap,
        start_offset: int,
        transactions: CleanedTransactions,
        latest_offset: int,
    ) -> None:
        self._map = offset_map
        self._start_offset = start_offset
        self._transactions = transactions
        self.latest_offset = latest_offset
        self.is_full = False

    def take(self, chunk: Buffer) -> int:
        position = 0
        while True:
            status, position, latest_offset = self._map.index_batches(
                chunk, position, len(chunk), self._start_offset
            )
            self.latest_offset = max(self.latest_offset, latest_offset)
            if status == WALK_DONE:
                return position
            header = parse_header(chunk, position)
            if status == WALK_FULL or not self._index_opaque(chunk, position, header):
                self.is_full = True
                return -1
            self.latest_offset = max(self.latest_offset, header.last_offset)
            position += header.size_bytes

    def _index_opaque(self, chunk: Buffer, position: int, header: BatchHeader) -> bool:
        """A batch that only Python can decode; False if its keys did not all fit."""
        if header.is_control:
            section = _open(chunk, position, header)
            self._transactions.on_marker(header, _control_type(header, section))
            return True
        if self._transactions.on_batch(header):
            return True
        section = _open(chunk, position, header)
        return self._map.index_records(section, 0, len(section), header, self._start_offset)


class CopyPass:
    """Copies the remaining records of chunks to a new segment."""

    target: CleanedSegment
    output: bytearray

    def __init__(
        self,
        plan: CleaningPlan,
        offset_map: OffsetMap,
        latest_offset: int,
        end_offset: int,
        transactions: CleanedTransactions,
        stats: CleaningStats,
    ) -> None:
        self._plan = plan
        self._end_offset = end_offset
        self._transactions = transactions
        self._stats = stats
        self._filter = RecordFilter(
            offset_map,
            latest_offset=latest_offset,
            now_ms=plan.now_ms,
            delete_retention_ms=plan.config.delete_retention_ms,
            upper_bound=end_offset,
            kept_ends=plan.producer_ends,
            # The tombstone is the last record of its key and has its version.
            all_tombstones=plan.config.millstream_conditional_append == VERSION_OF_KEY,
        )

    def take(self, chunk: Buffer) -> int:
        position = filled = 0
        while True:
            status, position, filled, read, kept = self._filter.filter_batches(
                chunk, position, len(chunk), self.output, filled
            )
            self._stats.records_read += read
            self._stats.records_kept += kept
            if status == WALK_DONE:
                break
            if status == WALK_FULL:
                self._make_room(chunk, position, filled)
                filled = 0
                continue
            header = parse_header(chunk, position)
            stays = self._filter_opaque(chunk, position, header)
            if filled + len(stays) > len(self.output):
                self._write(memoryview(self.output)[:filled])
                filled = 0
            if len(stays) > len(self.output):
                self._write(memoryview(stays))
            else:
                self.output[filled : filled + len(stays)] = stays
                filled += len(stays)
            position += header.size_bytes
        self._write(memoryview(self.output)[:filled])
        self._stats.bytes_read += position
        return position

    def _make_room(self, chunk: Buffer, position: int, filled: int) -> None:
        if filled:
            self._write(memoryview(self.output)[:filled])
        else:
            size = parse_header(chunk, position).size_bytes
            self.output = bytearray(max(GROWTH_FACTOR_MAX * size, 2 * len(self.output)))

    def _write(self, batches: memoryview) -> None:
        if batches:
            self.target.append(batches)
            self._stats.bytes_written += len(batches)
        batches.release()

    def _filter_opaque(self, chunk: Buffer, position: int, header: BatchHeader) -> Buffer:
        """The remaining records of a batch that only Python can decode."""
        self._stats.records_read += header.record_count
        section = _open(chunk, position, header)
        is_control = header.is_control
        if is_control:
            control_type = _control_type(header, section)
            may_go, aborted = self._transactions.on_marker(header, control_type)
            if aborted is not None:
                self.target.note_aborted(aborted)
            goes = may_go and _is_past_horizon(header, self._plan.now_ms)
        else:
            goes = may_go = self._transactions.on_batch(header)
        if goes:
            return self._without_records(header)
        kept, max_timestamp, horizon_ms, records = self._filter.filter_records(
            section, 0, len(section), header, is_control, is_control and may_go
        )
        self._stats.records_kept += kept
        if kept == 0:
            return self._without_records(header)
        if records is None:
            return memoryview(chunk)[position : position + header.size_bytes]
        if horizon_ms is not None:
            attributes = header.attributes | DELETE_HORIZON_FLAG
            header = header._replace(attributes=attributes, base_timestamp=horizon_ms)
        header = header._replace(max_timestamp=max_timestamp, record_count=kept)
        return assemble_batch(header, compress(records, header.compression))

    def _without_records(self, header: BatchHeader) -> bytes:
        """The bare header if it is still needed, else nothing."""
        if header.next_offset != self._end_offset and not self._is_last_of_producer(header):
            return b""
        return keep_records(header, ())

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id < 0:
            return False
        if header.is_control:
            return self._plan.marker_epochs.get(header.producer_id) == header.producer_epoch
        return header.last_offset in self._plan.producer_ends


def _open(chunk: Buffer, position: int, header: BatchHeader) -> Buffer:
    section = memoryview(chunk)[position + HEADER_SIZE_BYTES : position + header.size_bytes]
    return decompress(section, header.compression) if header.record_count else b""


def _control_type(header: BatchHeader, section: Buffer) -> ControlType | None:
    """None for a control batch that an earlier cleaning emptied."""
    records = decode_records(header, section)
    return ControlType.from_key(records[0].key) if records else None


def _is_past_horizon(header: BatchHeader, now_ms: int) -> bool:
    horizon_ms = header.delete_horizon_ms
    return horizon_ms is not None and horizon_ms <= now_ms


def _size_of_large_batch(chunk: Buffer, bytes_left: int) -> int:
    """The size of a batch that is larger than the chunk."""
    size = parse_header(chunk).size_bytes
    if size > bytes_left or size <= len(chunk):
        raise CorruptBatch(f"batch of {size} bytes exceeds the remaining {bytes_left}")
    return size


def _end_of(plan: CleaningPlan, segment: Segment) -> int:
    """Where the next segment begins."""
    number = plan.segments.index(segment) + 1
    return plan.segments[number].base_offset if number < len(plan.segments) else plan.upper_bound


def _aborted_from(plan: CleaningPlan, offset: int) -> list[AbortedTransaction]:
    """The aborted transactions that end at or after `offset`, wherever their marker lies."""
    return [
        aborted
        for segment in plan.log.segments
        for aborted in segment.read_aborted()
        if aborted.last_offset >= offset
    ]


def _name(plan: CleaningPlan) -> tuple[str, int]:
    return plan.log.topic, plan.log.partition


def _log_stats(stats: CleaningStats) -> None:
    logger.info(
        "%s-%d: cleaned offsets %d to %d: %d of %d records and %d of %d bytes remain, in %d "
        "segments before and %d after",
        stats.topic,
        stats.partition,
        stats.first_dirty_offset,
        stats.next_dirty_offset,
        stats.records_kept,
        stats.records_read,
        stats.bytes_written,
        stats.bytes_read,
        stats.segments_before,
        stats.segments_after,
    )


# The checkpoint


def read_first_dirty_offsets(directories: Iterable[LogDirectory]) -> dict[tuple[str, int], int]:
    offsets: dict[tuple[str, int], int] = {}
    for directory in set(directories):
        offsets |= checkpoints.read_offsets(directory.fs, _checkpoint_path(directory))
    return offsets


def _save_first_dirty_offset(plan: CleaningPlan, offset: int) -> None:
    directory = plan.log.directory
    path = _checkpoint_path(directory)
    with directory.checkpoint_lock:
        if plan.log.is_deleted:
            return  # its entry was removed, or is about to be: the name may be another log's soon
        offsets = checkpoints.read_offsets(directory.fs, path)
        offsets[_name(plan)] = offset
        checkpoints.write_offsets(directory.fs, path, offsets)


def _checkpoint_path(directory: LogDirectory) -> str:
    return f"{directory.path}/{names.CLEANER_OFFSETS}"
