"""Look-ups in a log: offsets by timestamp (ListOffsets), aborted transactions, the end of damage.

All are safe in any thread, and raise `LogGone` if the log was deleted.

A timestamp finds the first record at or after it; negative ones are special:

    -1  latest                   the log's end (a partition answers with its high watermark)
    -2  earliest                 the log's start
    -3  largest timestamp        the record that has it
    -4  earliest on this machine the log's start (no tiers here)
    -5  latest in a remote tier  unknown
    -6  earliest not yet there   unknown

The answer is the record's own offset, so the batch that holds it is opened; everything else is
found from batch headers. May read the disk: call it in a thread for a log that is not in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import NamedTuple, TypeVar

from millstream.errors import ApiError, CorruptBatch, CorruptIndex, ErrorCode, FileGone, LogGone
from millstream.records._walk import find_timestamp
from millstream.records.batch import HEADER_SIZE_BYTES, NO_TIMESTAMP, BatchHeader, verify_crc
from millstream.records.compression import decompress
from millstream.records.record import decode_records
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.transactions import AbortedTransaction, overlapping

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

UNKNOWN_OFFSET = -1

# A file that compaction is renaming is there again in a moment.
ATTEMPTS = 5
ATTEMPT_PAUSE_SECONDS = 0.002

T = TypeVar("T")


class TimestampOffset(NamedTuple):
    """A result; -1: unknown or not applicable."""

    timestamp: int
    offset: int
    leader_epoch: int


UNKNOWN = TimestampOffset(NO_TIMESTAMP, UNKNOWN_OFFSET, -1)


def offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    """The first record at or after that time, or what a negative timestamp stands for; None if no
    record is that new."""
    return read_files(log, lambda: _offset_for_timestamp(log, timestamp))


def end_of_damage(log: Log, offset: int) -> int:
    """The first offset after a damaged batch where reading may work again.

    Usually that of the next batch. If the length of the damaged batch cannot be trusted, it is the
    next offset in an index: batches in between cannot be found.
    """
    return read_files(log, lambda: _end_of_damage(log, offset))


def aborted_transactions(
    log: Log, first_offset: int, end_offset: int, *, may_block: bool = True
) -> list[AbortedTransaction]:
    """Aborted transactions in [first_offset, end_offset), in the order of their markers.

    Raises `NotCached` rather than read the disk unless it `may_block`.
    """
    if not log.aborted_segments:
        return []
    return read_files(
        log, lambda: _find_aborted(log, first_offset, end_offset, may_block=may_block)
    )


def _offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    if timestamp >= 0:
        return _first_record_from(log, timestamp)
    if timestamp == LATEST:
        return TimestampOffset(NO_TIMESTAMP, log.log_end_offset, log.latest_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return TimestampOffset(NO_TIMESTAMP, start, log.epochs.epoch_of(start))
    if timestamp == MAX_TIMESTAMP:
        return _max_timestamp_offset(log)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return UNKNOWN
    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{timestamp} is not a timestamp to look up")


def _max_timestamp_offset(log: Log) -> TimestampOffset | None:
    """The first record that has the largest timestamp of the log; None if it has none."""
    newest: Segment | None = None
    for segment in log.segments:
        segment.load_timestamps()
        timestamp = segment.max_timestamp
        assert timestamp is not None
        if timestamp >= 0 and (newest is None or timestamp > (newest.max_timestamp or 0)):
            newest = segment
    if newest is None or newest.max_timestamp is None:
        return None
    return _search_segment(log, newest, newest.max_timestamp)


def _end_of_damage(log: Log, offset: int) -> int:
    segments, number = log.find_segment(offset)
    segment = segments[number]
    end = segments[number + 1].base_offset if number + 1 < len(segments) else log.log_end_offset
    position = segment.floor_position(offset, may_block=True)
    try:
        for found, header in segment.walk(position, may_block=True):
            if header.base_offset > offset:
                return min(header.base_offset, end)
            position = found + header.size_bytes
    except CorruptBatch:
        return _next_indexed(segment, position, offset, end)
    return end


def _next_indexed(segment: Segment, position: int, offset: int, end: int) -> int:
    """The first offset after this one to which an index leads past that position; or the end."""
    first, last = offset + 1, end
    while first < last:
        middle = (first + last) // 2
        if segment.floor_position(middle, may_block=True) > position:
            last = middle
        else:
            first = middle + 1
    return first


def _first_record_from(log: Log, timestamp: int) -> TimestampOffset | None:
    for segment in log.segments:
        segment.load_timestamps()
        if segment.max_timestamp is not None and segment.max_timestamp >= timestamp:
            found = _search_segment(log, segment, timestamp)
            if found is not None:
                return found
    return None


def _search_segment(log: Log, segment: Segment, timestamp: int) -> TimestampOffset | None:
    offset = max(segment.floor_timestamp(timestamp, may_block=True), log.log_start_offset)
    position = segment.floor_position(offset, may_block=True)
    for found, header in segment.walk(position, may_block=True):
        if header.max_timestamp >= timestamp and header.last_offset >= log.log_start_offset:
            record = _record_in_batch(log, segment, found, header, timestamp)
            if record is not None:
                return TimestampOffset(record[1], record[0], header.leader_epoch)
    return None


def _record_in_batch(
    log: Log, segment: Segment, position: int, header: BatchHeader, timestamp: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record of the batch that is as new as that or newer."""
    data = segment.read_at(header.size_bytes, position, may_block=True)
    verify_crc(data, 0, header)
    section = decompress(memoryview(data)[HEADER_SIZE_BYTES:], header.compression)
    found = find_timestamp(section, 0, len(section), header, timestamp)
    if found is None or found[0] >= log.log_start_offset:
        return found
    # The log starts inside this batch: earlier records are deleted, though still in the file.
    for record in decode_records(header, section):
        if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
            return record.offset, record.timestamp
    return None


def _find_aborted(
    log: Log, first_offset: int, end_offset: int, *, may_block: bool
) -> list[AbortedTransaction]:
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return _collect_aborted(log, first_offset, end_offset, may_block=may_block)
        except FileNotFoundError as error:
            log.check()
            problem = error
            sleep(ATTEMPT_PAUSE_SECONDS)
        except CorruptIndex as error:
            log.check()
            problem = error
            break
    raise ApiError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"cannot read the aborted transactions of {log.topic}-{log.partition}: {problem}",
    )


def _collect_aborted(
    log: Log, first_offset: int, end_offset: int, *, may_block: bool
) -> list[AbortedTransaction]:
    found: list[AbortedTransaction] = []
    for segment in tuple(log.aborted_segments):
        entries = segment.aborted
        if entries is None:
            entries = log.directory.transaction_indexes.read(segment, may_block=may_block)
        some, is_complete = overlapping(entries, first_offset, end_offset)
        found += some
        if is_complete:
            break
    return found


def read_files(log: Log, read: Callable[[], T]) -> T:
    """Call a function that reads segments in any thread, once more if some were removed or
    replaced meanwhile. What it read by path is good only if the log is still there then."""
    while True:
        segments = log.segments
        try:
            found = read()
        except (FileGone, FileNotFoundError):
            if not log.is_deleted and log.segments is segments:
                raise
        else:
            if not log.is_deleted:
                return found
        if log.is_deleted:
            raise LogGone(log.topic, log.partition)
