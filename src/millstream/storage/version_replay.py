"""Reads the versions of a log's keys from a snapshot and the log, and saves snapshots.

See `versions.py` for the format and its crash rule.
"""

from __future__ import annotations

import logging
from functools import partial

from millstream.errors import CorruptBatch, FileGone, MillstreamError, StorageError
from millstream.records.batch import HEADER_SIZE_BYTES, BatchHeader, Buffer, parse_header
from millstream.records.compression import decompress
from millstream.records.record import ControlType, decode_end_transaction
from millstream.storage import names
from millstream.storage._core import VersionTable
from millstream.storage.filesystem import read_file, replace_file
from millstream.storage.flush import sync_segments
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.steps import Steps, let_others_work
from millstream.storage.versions import encode_snapshot, load_snapshot

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
ENTRIES_PER_TURN = 65_536
# A start after a crash replays at most about this many records, or half as many as there are keys.
SNAPSHOT_RECORDS_MIN = 250_000

Extent = list[tuple[Segment, int]]


def build_versions(log: Log) -> Steps[None]:
    """Set the versions of a log whose topic has just got them. Until then appends are refused; only
    the markers of transactions are appended meanwhile."""
    try:
        while log.needs_versions and not log.is_deleted:
            generation, end_offset = log.generation, log.log_end_offset
            extent = _extent(log)
            try:
                table = yield partial(_read, log, extent, end_offset)
                while generation == log.generation and end_offset < log.log_end_offset:
                    start_offset, end_offset = end_offset, log.log_end_offset
                    yield partial(replay, table, _extent(log), start_offset)
            except (FileGone, FileNotFoundError):
                continue  # compacted meanwhile
            if generation == log.generation and log.needs_versions:
                log.versions = table
    except (MillstreamError, OSError) as error:
        if not log.is_deleted:
            logger.error(
                "the versions of the keys of %s-%d are unknown, and appends are refused: %s",
                *(log.topic, log.partition, error),
            )


def read_versions(log: Log) -> VersionTable:
    """From the snapshot, if there is a usable one, and the log. On any thread, while nothing is
    appended."""
    return _read(log, _extent(log), log.log_end_offset)


def _extent(log: Log) -> Extent:
    """The bytes that the log has now."""
    return [(segment, segment.size) for segment in log.segments]


def _read(log: Log, extent: Extent, end_offset: int) -> VersionTable:
    table, start_offset = _load(log, end_offset)
    replay(table, extent, start_offset)
    return table


def _load(log: Log, end_offset: int) -> tuple[VersionTable, int]:
    """The table, and the offset to replay from."""
    if log.version_snapshot is not None:
        path = names.offset_file(log.path, log.version_snapshot, names.VERSIONS_SUFFIX)
        try:
            table, start_offset, snapshot_end = load_snapshot(read_file(log.directory.fs, path))
            if snapshot_end <= end_offset:
                return table, start_offset
            problem = f"it ends at {snapshot_end}, the log at {end_offset}"
        except StorageError as error:
            problem = str(error)
        except FileNotFoundError:
            problem = "it is missing"
        logger.warning("reading the whole log instead of %s: %s", path, problem)
        log.drop_version_snapshot()
    return VersionTable(), log.segments[0].base_offset


def replay(table: VersionTable, extent: Extent, start_offset: int) -> None:
    """Enter all records from an offset on. On any thread."""
    number = 0
    for index, (segment, _) in enumerate(extent):
        if segment.base_offset <= start_offset:
            number = index
    for segment, size in extent[number:]:
        position = segment.floor_position(start_offset, may_block=True)
        want = CHUNK_BYTES
        while position < size:
            chunk = segment.read_at(min(want, size - position), position, may_block=True)
            taken = replay_batches(table, chunk, start_offset)
            want = CHUNK_BYTES if taken else parse_header(chunk).size_bytes
            if not taken and want <= len(chunk):
                raise CorruptBatch(f"{segment.handle.path} ends inside a batch at {position}")
            position += taken


def replay_batches(table: VersionTable, chunk: Buffer, start_offset: int) -> int:
    """Enter the records of all whole batches, from an offset on; returns the size of these."""
    position = 0
    while True:
        is_end, position = table.replay_batches(chunk, position, len(chunk), start_offset)
        if is_end:
            return position
        header = parse_header(chunk, position)
        batch = memoryview(chunk)[position : position + header.size_bytes]
        if header.base_offset >= start_offset or header.last_offset >= start_offset:
            _replay_opaque(table, header, batch, start_offset)
        position += header.size_bytes


def _replay_opaque(
    table: VersionTable, header: BatchHeader, batch: memoryview, start_offset: int
) -> None:
    """A batch that is compressed, transactional or a marker."""
    if header.is_control:
        marker = decode_end_transaction(batch) if header.record_count else None
        if marker is not None:
            table.end_transaction(header.producer_id, marker[0] is ControlType.COMMIT)
    elif header.record_count:
        section = decompress(batch[HEADER_SIZE_BYTES:], header.compression)
        table.replay_records(section, header, start_offset)


# Snapshots


def needs_snapshot(log: Log) -> bool:
    """Whether so much was appended since the last snapshot that another one is worth its cost."""
    table = log.versions
    if table is None:
        return False
    start_offset = log.version_snapshot
    if start_offset is None:
        start_offset = log.log_start_offset
    return log.log_end_offset - start_offset >= max(SNAPSHOT_RECORDS_MIN, table.count // 2)


def save_versions(log: Log, *, now_ms: int) -> Steps[None]:
    """Replace the snapshot. Raises `ApiError` if the disk refuses or the log is gone."""
    table, generation = log.versions, log.generation
    if table is None or not log.has_files:
        return
    start_offset, held = log.log_end_offset, table.held()
    entries = []
    for number in range(0, table.end_number, ENTRIES_PER_TURN):  # what is added later is replayed
        entries.append(table.encode(number, number + ENTRIES_PER_TURN, log.log_start_offset))
        yield let_others_work
    end_offset = log.log_end_offset
    yield from sync_segments(log, now_ms)

    def write() -> None:
        content = encode_snapshot(
            table, entries, held, start_offset=start_offset, end_offset=end_offset
        )
        with log.held():
            replace_file(log.directory.fs, _path(log, start_offset), content)

    def remove(offset: int) -> None:
        with log.held():
            log.directory.fs.unlink(_path(log, offset))

    if log.versions is not table or log.generation != generation:
        return
    try:
        yield write
        if log.versions is not table or log.generation != generation:
            yield partial(remove, start_offset)  # truncated meanwhile, or the setting was changed
        else:
            before, log.version_snapshot = log.version_snapshot, start_offset
            if before is not None and before != start_offset:
                yield partial(remove, before)
    except OSError as error:
        raise log.storage_error("save the versions of", error) from error


def encode_for_clean_stop(log: Log) -> tuple[str, bytes] | None:
    """The path and content of a snapshot of all, if the present one is older."""
    table, end_offset = log.versions, log.log_end_offset
    if table is None or log.version_snapshot == end_offset or not end_offset:
        return None
    entries = [table.encode(0, table.end_number, log.log_start_offset)]
    content = encode_snapshot(
        table, entries, table.held(), start_offset=end_offset, end_offset=end_offset
    )
    return _path(log, end_offset), content


def _path(log: Log, offset: int) -> str:
    return names.offset_file(log.path, offset, names.VERSIONS_SUFFIX)
