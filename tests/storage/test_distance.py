"""Bytes between offsets of a log, and the age of records."""

from __future__ import annotations

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import LogGone
from millstream.records.batch import iterate_headers
from millstream.storage.distance import bytes_between, offset_within, timestamp_at
from millstream.storage.log import Log
from tests.storage.store import Store

RECORDS = 60


def make_store() -> Store:
    """Offsets 0..59, three to a batch; a record's timestamp is 1000 + its offset."""
    store = Store(config=TopicConfig(segment_bytes=500, index_interval_bytes=100))
    for number in range(RECORDS // 3):
        store.append(b"a", b"b" * (number % 7), b"c", timestamp=1000 + 3 * number, epoch=2)
    assert len(store.log().segments) > 2
    return store


def batches(log: Log) -> list[tuple[int, int, int]]:
    """First offset, last offset and size of every batch, by reading the whole log."""
    found = []
    offset = log.segments[0].base_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=1, end_offset=log.log_end_offset, may_block=True)
        for _, header in iterate_headers(data):
            found.append((header.base_offset, header.last_offset, header.size_bytes))
            offset = header.last_offset + 1
    return found


@pytest.mark.parametrize("restarted", [False, True])
def test_bytes_are_those_of_the_batches_in_between(restarted: bool) -> None:
    store = make_store()
    if restarted:
        store.restart()
    log = store.log()
    every = batches(log)
    for first in range(RECORDS):
        for end in range(first, RECORDS + 1):
            expected = sum(
                size - size * max(first - base, 0) // (last + 1 - base)
                for base, last, size in every
                if last >= first and (last < end or end == RECORDS)
            )
            assert bytes_between(log, first, end, may_block=True) == expected, (first, end)


def test_bytes_beyond_the_log_do_not_count() -> None:
    log = make_store().log()
    log.delete_records_before(9)
    whole = bytes_between(log, 9, RECORDS, may_block=True)
    assert bytes_between(log, 0, RECORDS + 5, may_block=True) == whole
    assert bytes_between(log, RECORDS + 1, RECORDS + 5, may_block=True) == 0
    assert bytes_between(log, RECORDS, RECORDS, may_block=True) == 0


def test_timestamp_is_the_newest_of_the_batch() -> None:
    log = make_store().log()
    assert timestamp_at(log, 0, may_block=True) == 1002
    assert timestamp_at(log, 4, may_block=True) == 1005
    assert timestamp_at(log, RECORDS, may_block=True) is None
    log.delete_records_before(9)
    assert timestamp_at(log, 0, may_block=True) == 1011


@pytest.mark.parametrize("end", [RECORDS, 40])
def test_offset_within_leaves_at_most_so_many_bytes(end: int) -> None:
    log = make_store().log()
    starts = [base for base, *_ in batches(log)]
    for size in range(0, 3000, 37):
        offset = offset_within(log, end, size)
        assert bytes_between(log, offset, end, may_block=True) <= size
        earlier = [start for start in starts if start < offset]
        if earlier:
            assert bytes_between(log, earlier[-1], end, may_block=True) > size


def test_offset_within_is_in_the_log() -> None:
    log = make_store().log()
    log.delete_records_before(30)
    assert offset_within(log, RECORDS, 10**9) == 30
    assert offset_within(log, RECORDS, 0) == RECORDS


def test_a_deleted_log_has_no_distances() -> None:
    store = make_store()
    log = store.log()
    log.is_deleted = True
    with pytest.raises(LogGone):
        bytes_between(log, 0, 3, may_block=True)
