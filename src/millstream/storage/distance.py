"""How much of a log lies between two offsets in bytes, and how old the record at an offset is.

Sizes are those of batches as they are stored. All functions are safe in any thread; unless
they `may_block`, they raise `NotCached` rather than read the disk.
"""

from __future__ import annotations

from millstream.storage.log import Log
from millstream.storage.lookup import read_files
from millstream.storage.segment import Segment


def bytes_between(log: Log, first: int, end: int, *, may_block: bool) -> int:
    """Bytes of the records from `first` on in the batches that begin before `end`. Of the first
    batch, the share of its offsets that are at or after `first` counts."""
    return read_files(log, lambda: _bytes_between(log, first, end, may_block=may_block))


def timestamp_at(log: Log, offset: int, *, may_block: bool) -> int | None:
    """The largest timestamp in the batch with this offset, or in the next one after it; None if
    there is none."""
    return read_files(log, lambda: _timestamp_at(log, offset, may_block=may_block))


def offset_within(log: Log, end: int, size_bytes: int) -> int:
    """The first offset of the earliest batch from which on at most so many bytes lead to `end`.

    Reads the disk.
    """
    return read_files(log, lambda: _offset_within(log, end, size_bytes))


def _bytes_between(log: Log, first: int, end: int, *, may_block: bool) -> int:
    first = max(first, log.log_start_offset)
    end = min(end, log.log_end_offset)
    if first >= end:
        return 0
    segments, start_number = log.find_segment(first)
    located = segments[start_number].locate(first, may_block=may_block)
    if located is None:  # compaction left nothing at the end of this segment
        start = segments[start_number].size
    else:
        start, header = located
        before = max(first - header.base_offset, 0)
        start += header.size_bytes * before // (header.last_offset + 1 - header.base_offset)
    stop_number, stop = _end_position(log, segments, end, may_block=may_block)
    whole = sum(segment.size for segment in segments[start_number:stop_number])
    return max(whole + stop - start, 0)


def _end_position(
    log: Log, segments: list[Segment], end: int, *, may_block: bool
) -> tuple[int, int]:
    """The number of the segment that contains the end, and where in it."""
    if end >= log.log_end_offset:
        return len(segments) - 1, segments[-1].size
    number = len(segments) - 1
    while number and segments[number].base_offset > end:
        number -= 1
    return number, _position(segments[number], end, may_block=may_block)


def _position(segment: Segment, offset: int, *, may_block: bool) -> int:
    """Where the batch with this offset begins, or the next one, or the segment ends."""
    if offset <= segment.base_offset:
        return 0
    located = segment.locate(offset, may_block=may_block)
    return segment.size if located is None else located[0]


def _timestamp_at(log: Log, offset: int, *, may_block: bool) -> int | None:
    offset = max(offset, log.log_start_offset)
    segments, number = log.find_segment(offset)
    for segment in segments[number:]:
        located = segment.locate(offset, may_block=may_block)
        if located is not None:
            return located[1].max_timestamp
    return None


def _offset_within(log: Log, end: int, size_bytes: int) -> int:
    end = min(end, log.log_end_offset)
    segments = log.segments
    number, stop = _end_position(log, segments, end, may_block=True)
    left = size_bytes
    while stop <= left:
        left -= stop
        if number == 0:
            return log.log_start_offset
        number -= 1
        stop = segments[number].size
    segment = segments[number]
    position = segment.batch_start_before(stop - left, may_block=True)
    for found, header in segment.walk(position, may_block=True):
        if found >= stop - left:
            return max(min(header.base_offset, end), log.log_start_offset)
    following = segments[number + 1].base_offset if number + 1 < len(segments) else end
    return max(min(following, end), log.log_start_offset)
