"""Appends of a follower: the batches of the leader, byte for byte.

A follower does not assign offsets, epochs or timestamps. It checks that the bytes are what the
leader has (CRC, order of offsets, epochs), writes them as they are, and derives from them what the
leader has derived: indexes, leader epochs, producers, aborted transactions, versions of keys. So
equal bytes mean equal state.

Offsets may have gaps, within an answer and before its first batch: compaction at the leader leaves
them, and they stay after the topic's cleanup policy has changed. What protects against lost batches
is the offset of the request: an answer is appended only where the log ended when it was requested.

Where segments begin is up to each replica: their files may have other names than the leader's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millstream.errors import CorruptBatch, MillstreamError, StorageError, UnexpectedOffset
from millstream.records.batch import BatchHeader, Buffer, iterate_headers, verify_crc
from millstream.storage.index import RELATIVE_OFFSET_MAX
from millstream.storage.log import Log
from millstream.storage.version_replay import replay_batches


class Followed(NamedTuple):
    """What was appended: offsets from `first_offset` up to, but excluding, `next_offset`."""

    first_offset: int
    next_offset: int
    ended: Sequence[tuple[int, int]]  # transactions: where they begin, and the offset of the marker


class FetchedBatches(NamedTuple):
    """Whole batches whose CRCs are right."""

    records: memoryview
    headers: Sequence[BatchHeader]


def check_fetched(records: Buffer) -> FetchedBatches:
    """The whole batches in the records of a fetch answer, which may end inside a batch.

    Raises `CorruptBatch`. Takes about a millisecond a megabyte. On any thread.
    """
    headers = []
    end = 0
    next_offset = 0
    for position, header in iterate_headers(records):
        verify_crc(records, position, header)
        if header.base_offset < next_offset:
            raise CorruptBatch(
                f"batch at offset {header.base_offset} follows one that ends at {next_offset}"
            )
        headers.append(header)
        next_offset = header.next_offset
        end = position + header.size_bytes
    return FetchedBatches(memoryview(records)[:end], headers)


def append_fetched(
    log: Log, fetched: FetchedBatches, *, fetch_offset: int, leader_epoch: int, now_ms: int
) -> Followed:
    """Append what a leader of `leader_epoch` has answered to a fetch at `fetch_offset`.

    Raises, without any effect, `UnexpectedOffset` if the log does not end there, or if the first
    batch begins earlier; `CorruptBatch` if a batch has a later epoch than its leader. Otherwise as
    `Log.append`, but some of the batches may have been appended: see the log's end.
    """
    first_offset = log.log_end_offset
    if not fetched.headers:
        return Followed(first_offset, first_offset, ())
    _check(log, fetched.headers, fetch_offset, leader_epoch)
    start = 0
    ended: list[tuple[int, int]] = []
    for run in _runs(log, fetched.headers):
        size = sum(header.size_bytes for header in run)
        ended += _append_run(log, fetched.records[start : start + size], run, now_ms)
        start += size
    return Followed(first_offset, log.log_end_offset, ended)


def _check(log: Log, headers: Sequence[BatchHeader], fetch_offset: int, leader_epoch: int) -> None:
    end_offset, name = log.log_end_offset, f"{log.topic}-{log.partition}"
    if fetch_offset != end_offset:
        raise UnexpectedOffset(
            f"{name} ends at {end_offset}, but the batches were fetched at {fetch_offset}",
            headers[0].base_offset,
        )
    if headers[0].base_offset < end_offset:
        raise UnexpectedOffset(
            f"{name} ends at {end_offset}, inside the leader's batch at {headers[0].base_offset}",
            headers[0].base_offset,
        )
    for header in headers:
        if header.leader_epoch > leader_epoch:
            raise CorruptBatch(
                f"batch at offset {header.base_offset} of {name} has leader epoch "
                f"{header.leader_epoch}, but its leader has {leader_epoch}"
            )


def _runs(log: Log, headers: Sequence[BatchHeader]) -> Iterator[list[BatchHeader]]:
    """Batches to be written at once: as many as fit into a segment, and at least one."""
    room = log.config.segment_bytes - log.active_segment.size
    run: list[BatchHeader] = []
    for header in headers:
        room -= header.size_bytes
        if run and (room < 0 or header.last_offset - run[0].base_offset > RELATIVE_OFFSET_MAX):
            yield run
            run = []
            room = log.config.segment_bytes - log.active_segment.size - header.size_bytes
        run.append(header)
    yield run


def _append_run(
    log: Log, records: memoryview, headers: Sequence[BatchHeader], now_ms: int
) -> list[tuple[int, int]]:
    active = log.active_segment
    if not active.size and headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX:
        raise StorageError(
            f"{log.topic}-{log.partition} has no record from {active.base_offset} to "
            f"{headers[0].base_offset}: a segment cannot span that; delete this replica, so that "
            "it begins at the leader's start"
        )
    # Markers end transactions of versions in `append_fetched` of the log, too: not twice.
    versions, log.versions = log.versions, None
    try:
        ended = log.append_as_is(records, headers, now_ms=now_ms)
    finally:
        log.versions = versions
    if versions is not None:
        try:
            replay_batches(versions, records, headers[0].base_offset)
        except MillstreamError:  # as a leader, the log has to read them again
            log.versions = None
    return ended
