"""Opens a `Log` from its directory, with recovery after a crash.

After a clean stop nothing is scanned: the log's end is found from the last index entry. After a
crash, only the bytes after the recovery point are read: every batch must be complete, match its CRC
and have a higher offset than the previous one. At the first invalid batch the log is truncated, and
later segments are deleted; the rest is synced, and its indexes are rebuilt. Recovery is idempotent.
Before that, the journal is replayed, once per directory (`replay.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, iterate_headers, parse_header, verify_crc
from millstream.storage import names
from millstream.storage.index import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex, search_count
from millstream.storage.log import Log
from millstream.storage.producer_replay import rebuild_producers
from millstream.storage.replacement import finish_replacement
from millstream.storage.segment import INDEXED_BYTES_MIN, Segment

logger = logging.getLogger(__name__)

SCAN_CHUNK_BYTES = 4 * 1024 * 1024

Visit = Callable[[int, BatchHeader], None]


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Input for opening a log."""

    clean: bool
    synced: bool = False  # whether all bytes of the last process were just synced
    recovery_point: int = 0
    log_start_offset: int = 0


def load_log(log: Log, start: StartingPoint, *, now_ms: int) -> None:
    """Fill a new `Log` from its directory."""
    files = finish_replacement(log)
    _open_segments(log, files, start, now_ms)
    log.epochs.load(log.directory.fs)
    log.log_start_offset = max(start.log_start_offset, log.segments[0].base_offset)
    scanned_from = None if start.clean and _find_end(log) else _recover(log, start)
    log.recovery_point = log.flushed_offset = log.log_end_offset
    log.log_start_offset = min(log.log_start_offset, log.log_end_offset)
    log.last_flush_ms = now_ms
    _load_producers(log, files, scanned_from, now_ms)
    _find_version_snapshot(log, files)
    for segment in log.segments:
        segment.release()


def _load_producers(
    log: Log, files: list[tuple[int, str]], scanned_from: int | None, now_ms: int
) -> None:
    """Also rebuilds the indexes of aborted transactions of all scanned segments."""
    for offset, suffix in files:
        if suffix != names.SNAPSHOT_SUFFIX:
            continue
        if _is_usable_snapshot(log, offset):
            log.snapshots.append(offset)
        else:
            log.directory.fs.unlink(names.offset_file(log.path, offset, suffix))
    log.snapshots.sort()
    if log.snapshots or scanned_from is not None:
        rebuild_producers(log, from_offset=scanned_from, now_ms=now_ms)
    # A clean stop saves a snapshot if there are producers at all.


def _find_version_snapshot(log: Log, files: list[tuple[int, str]]) -> None:
    """The newest; it is read when the topic's settings are known."""
    offsets = sorted(offset for offset, suffix in files if suffix == names.VERSIONS_SUFFIX)
    for offset in offsets[:-1]:
        log.directory.fs.unlink(names.offset_file(log.path, offset, names.VERSIONS_SUFFIX))
    log.version_snapshot = offsets[-1] if offsets else None


def _is_usable_snapshot(log: Log, offset: int) -> bool:
    """Whether the log may be replayed from the snapshot at this offset. (As in Kafka.)

    Not if it is past the log's end. Nor if a clean stop left it inside a segment that was sealed
    since, or if it is before the first segment: it may contain an open transaction whose marker was
    compacted or deleted, and which would hang forever.
    """
    segments, number = log.find_segment(offset)
    base_offset = segments[number].base_offset
    if number == len(segments) - 1:
        return base_offset <= offset <= log.log_end_offset
    return base_offset == offset


def _open_segments(
    log: Log, files: list[tuple[int, str]], start: StartingPoint, now_ms: int
) -> None:
    fs, handles = log.directory.fs, log.directory.handles
    present = set(files)
    segments = []
    for base_offset in sorted(offset for offset, suffix in files if suffix == names.LOG_SUFFIX):
        segment = Segment(handles, log.path, base_offset)
        segment.size = fs.file_size(segment.handle.path)
        segment.synced_bytes = segment.durable_bytes = segment.trusted_from = segment.size
        segment.has_aborted = (base_offset, names.TRANSACTION_INDEX_SUFFIX) in present
        segments.append(segment)
    for offset, suffix in files:
        if suffix in names.INDEX_SUFFIXES and (offset, names.LOG_SUFFIX) not in present:
            fs.unlink(names.offset_file(log.path, offset, suffix))
    if not segments:
        segments.append(
            Segment.create(
                handles, log.path, start.log_start_offset, now_ms=now_ms, config=log.config
            )
        )
        fs.sync_directory(log.path)
    log.set_segments(segments)
    for segment in segments[:-1]:
        indexes = {(segment.base_offset, suffix) for suffix in names.INDEX_SUFFIXES[:2]}
        if not indexes <= present:
            logger.warning("%s has no index: rebuilding it", segment.handle.path)
            scan_segment(log, segment, 0, lambda position, header: None)
            segment.seal()


def _find_end(log: Log) -> bool:
    """Find the log's end after a clean stop; False if the last segment is not cleanly closed."""
    segment = log.active_segment
    end_offset = segment.base_offset
    try:
        position = segment.floor_position(2**63 - 1, may_block=True)
        for _, header in segment.walk(position, may_block=True):
            end_offset = header.next_offset
    except CorruptBatch as error:
        logger.warning("the log is damaged despite a clean stop, recovering: %s", error)
        return False
    log.log_end_offset = end_offset
    return True


def _recover(log: Log, start: StartingPoint) -> int:
    """Check everything after the recovery point and truncate the log at the first error.

    Returns the start of the first scanned segment.
    """
    segments, recovery_point = log.segments, start.recovery_point
    log.epochs.truncate_from_end(recovery_point)  # the batches after it have theirs
    number = max(
        (i for i, segment in enumerate(segments) if segment.base_offset < recovery_point),
        default=0,
    )
    end_offset = segments[number].base_offset
    removed_bytes = 0
    for index in range(number, len(segments)):
        segment = segments[index]
        if index > number and segment.base_offset > max(end_offset, recovery_point):
            # Its predecessor lost its end. (Below the recovery point, compaction makes gaps.)
            removed_bytes += _remove_segments(log, segments[index:])
            log.set_segments(segments[:index])
            break
        end_offset, cut_bytes = _recover_segment(log, segment, start)
        removed_bytes += cut_bytes
        if cut_bytes and index + 1 < len(segments):
            removed_bytes += _remove_segments(log, segments[index + 1 :])
            log.set_segments(segments[: index + 1])
            break
    for segment in log.segments[number:-1]:
        segment.seal()
        segment.sync_indexes()
    if removed_bytes or number < len(log.segments) - 1:
        log.directory.fs.sync_directory(log.path)
    log.log_end_offset = end_offset
    log.epochs.truncate_from_end(end_offset)
    if removed_bytes:
        logger.warning(
            "%s-%d: recovery truncated %d torn or corrupt bytes; the log ends at offset %d",
            log.topic,
            log.partition,
            removed_bytes,
            end_offset,
        )
    return segments[number].base_offset


def _remove_segments(log: Log, segments: list[Segment]) -> int:
    fs = log.directory.fs
    for segment in segments:
        segment.close()
        for suffix in names.SEGMENT_SUFFIXES:
            if fs.exists(segment.path(suffix)):
                fs.unlink(segment.path(suffix))
    return sum(segment.size for segment in segments)


def _recover_segment(log: Log, segment: Segment, start: StartingPoint) -> tuple[int, int]:
    """(end offset of the segment, number of truncated bytes)"""
    end_offset = segment.base_offset

    def visit(position: int, header: BatchHeader) -> None:
        nonlocal end_offset
        end_offset = header.next_offset
        log.epochs.assign(header.leader_epoch, header.base_offset)

    fs, handles = log.directory.fs, log.directory.handles
    with handles.borrowed(segment.handle) as fd:
        # Bytes of the last process may not be on disk yet, or, after a failed sync, may never get
        # there although the page cache has them: trust only the disk.
        if not start.synced:
            fs.fdatasync(fd)
        fs.drop_cache(fd)
        segment.size = size = fs.size(fd)
        scan_segment(log, segment, _trusted_position(segment, start.recovery_point), visit)
        if segment.size < size:
            fs.truncate(fd, segment.size)
            fs.fdatasync(fd)
    segment.release()
    segment.synced_bytes = segment.durable_bytes = segment.size
    return end_offset, size - segment.size


def _trusted_position(segment: Segment, recovery_point: int) -> int:
    """Where scanning starts: at an indexed batch below the recovery point, or at 0.

    The indexes of a large active segment are synced before its recovery point is saved, so their
    entries below it can be trusted; a small one is scanned whole. The indexes are left with the
    entries up to the position.
    """
    index = OffsetIndex(segment.path(names.INDEX_SUFFIX))
    time_index = TimeIndex(segment.path(names.TIME_INDEX_SUFFIX))
    index.load(segment.fs)
    time_index.load(segment.fs)
    count = search_count(index, recovery_point - segment.base_offset - 1, 0)
    if count and index.is_sorted() and time_index.is_sorted():
        relative, position = index[count - 1]
        if position >= INDEXED_BYTES_MIN and _is_batch(
            segment, position, segment.base_offset + relative
        ):
            index.truncate(count)
            time_index.truncate(search_count(time_index, relative, 1))
            segment.resume_indexes(index, time_index)
            return position
    return 0


def _is_batch(segment: Segment, position: int, last_offset: int) -> bool:
    try:
        header = parse_header(segment.read_at(61, position, may_block=True))
        data = segment.read_at(header.size_bytes, position, may_block=True)
        verify_crc(data, 0, header)
    except CorruptBatch:
        return False
    return header.last_offset == last_offset


def scan_segment(log: Log, segment: Segment, position: int, visit: Visit) -> None:
    """Check and index batches from `position` on; `size` becomes the valid size."""
    file_size = segment.size
    if segment.index is None or position == 0:
        segment.resume_indexes(
            OffsetIndex(segment.path(names.INDEX_SUFFIX)),
            TimeIndex(segment.path(names.TIME_INDEX_SUFFIX)),
        )
        position = 0
    segment.size = position
    next_offset = segment.base_offset
    try:
        while segment.size < file_size:
            for header in _scan_chunk(segment, file_size):
                if (
                    header.base_offset < next_offset
                    or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
                ):
                    raise CorruptBatch(f"offset {header.base_offset} is out of order")
                visit(segment.size, header)
                segment.note_batch(
                    header.last_offset,
                    header.size_bytes,
                    header.max_timestamp,
                    log.config.index_interval_bytes,
                )
                next_offset = header.next_offset
    except CorruptBatch as error:
        logger.warning(
            "truncating %s at byte %d of %d: %s",
            segment.handle.path,
            segment.size,
            file_size,
            error,
        )
    segment.trusted_from = position


def _scan_chunk(segment: Segment, file_size: int) -> list[BatchHeader]:
    """The headers of the batches at the scan's position; each has been checked."""
    position = segment.size
    want = min(SCAN_CHUNK_BYTES, file_size - position)
    data = segment.read_at(want, position, may_block=True)
    headers = _checked_headers(data)
    if not headers:
        # A batch larger than a chunk, or a torn end of the file.
        header = parse_header(data)
        if header.size_bytes > file_size - position:
            raise CorruptBatch(
                f"batch of {header.size_bytes} bytes is torn after {file_size - position} bytes"
            )
        data = segment.read_at(header.size_bytes, position, may_block=True)
        verify_crc(data, 0, header)
        headers = [header]
    return headers


def _checked_headers(data: bytes | bytearray) -> list[BatchHeader]:
    headers: list[BatchHeader] = []
    try:
        for position, header in iterate_headers(data):
            verify_crc(data, position, header)
            headers.append(header)
    except CorruptBatch:
        if not headers:
            raise
    return headers
