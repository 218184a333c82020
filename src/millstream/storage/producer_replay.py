"""Rebuilds producer state and the index of aborted transactions from the log.

From a snapshot of the producers and the batches after it: every batch updates its producer, every
marker ends its producer's transaction, and an abort is added to the index of the marker's segment.
So the index of a segment is correct if the replay starts at or before it; in the segment where it
starts, earlier index entries are kept.
"""

from __future__ import annotations

import logging

from millstream.errors import CorruptIndex, StorageError
from millstream.storage import names
from millstream.storage.filesystem import read_file
from millstream.storage.log import Log
from millstream.storage.producers import ProducerStates, replay_marker
from millstream.storage.segment import Segment
from millstream.storage.transactions import AbortedTransaction

logger = logging.getLogger(__name__)


def rebuild_producers(
    log: Log, *, from_offset: int | None = None, now_ms: int | None = None
) -> None:
    """Replace what the log knows of its producers. Blocks."""
    log.producers, segments = read_producers(log, from_offset=from_offset)
    log.set_segments(segments)  # it keeps those with aborted transactions apart
    if now_ms is not None:
        log.producers.expire(now_ms, log.directory.producer_expiration_ms)


def read_producers(
    log: Log, *, from_offset: int | None = None
) -> tuple[ProducerStates, list[Segment]]:
    """From the newest valid snapshot, or the newest up to `from_offset`, and all batches after.

    On any thread, while nothing is appended. The segments, whose indexes of aborted transactions
    are right then, are to be set by the owner's.
    """
    producers, offset = _load_snapshot(
        log, log.log_end_offset if from_offset is None else from_offset
    )
    segments, number = log.find_segment(offset)
    for segment in segments[number:]:
        try:
            aborted = _aborted_before(segment, offset)
        except CorruptIndex as error:
            logger.warning("%s: rebuilding it from the log", error)
            return read_producers(log, from_offset=segment.base_offset)
        position = segment.floor_position(offset, may_block=True)
        for found, header in segment.walk(position, may_block=True):
            if header.base_offset < offset or header.producer_id < 0:
                continue
            if header.is_control:
                marker = segment.read_at(header.size_bytes, found, may_block=True)
                ended = replay_marker(producers, header, marker, header.base_offset)
                if ended is not None:
                    aborted.append(ended)
            else:
                producers.record(header, header.base_offset)
        if aborted or segment.has_aborted:
            segment.set_aborted(aborted)
            log.directory.transaction_indexes.forget(segment)
    return producers, segments


def _aborted_before(segment: Segment, offset: int) -> list[AbortedTransaction]:
    if offset <= segment.base_offset:
        return []
    return [aborted for aborted in segment.read_aborted() if aborted.last_offset < offset]


def _load_snapshot(log: Log, offset_max: int) -> tuple[ProducerStates, int]:
    """The producers, and the offset as of which they are known. Unusable snapshots are removed."""
    fs, producers = log.directory.fs, ProducerStates()
    for offset in reversed(log.snapshots.copy()):
        path = names.offset_file(log.path, offset, names.SNAPSHOT_SUFFIX)
        try:
            producers.load_snapshot(read_file(fs, path))
        except StorageError as error:
            logger.warning("removing unusable %s: %s", path, error)
            fs.unlink(path)
            log.snapshots.remove(offset)
        else:
            if offset <= offset_max:
                return producers, offset
    producers.clear()
    # Not from the log's start: that may be inside a batch, and inside a transaction.
    return producers, log.segments[0].base_offset
