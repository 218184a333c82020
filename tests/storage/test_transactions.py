"""The index of aborted transactions."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from millstream.errors import CorruptIndex, NotCached
from millstream.records.record import ControlType, encode_end_transaction
from millstream.storage import lookup
from millstream.storage.filesystem import FileSystem, read_file, write_file
from millstream.storage.handles import FileHandles
from millstream.storage.segment import Segment
from millstream.storage.transactions import (
    AbortedTransaction,
    TransactionIndex,
    TransactionIndexCache,
    overlapping,
)
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.store import Store, make_batch

PATH = "/data/00000000000000000000.txnindex"
FIRST = AbortedTransaction(7, 10, 20, 10)
SECOND = AbortedTransaction(8, 15, 40, 30)


def make_index() -> tuple[MemoryFileSystem, TransactionIndex]:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    index = TransactionIndex(PATH)
    index.write(fs, [FIRST, SECOND], sync=False)
    return fs, index


def test_index_is_written_in_kafkas_format() -> None:
    fs, _ = make_index()
    content = read_file(fs, PATH)
    assert len(content) == 68
    assert content[:34] == bytes(2) + b"".join(field.to_bytes(8) for field in FIRST)


def test_index_reads_back_what_was_aborted() -> None:
    fs, index = make_index()
    assert index.read(fs) == [FIRST, SECOND]


def test_overlapping_finds_what_concerns_a_read() -> None:
    entries = [FIRST, SECOND]
    assert overlapping(entries, 0, 10) == ([], True)
    assert overlapping(entries, 0, 11) == ([FIRST], True)
    assert overlapping(entries, 20, 21) == ([FIRST, SECOND], True)
    assert overlapping(entries, 21, 100) == ([SECOND], False)


def test_index_of_odd_size_is_corrupt() -> None:
    fs, index = make_index()
    write_file(fs, PATH, read_file(fs, PATH)[:-1], sync=False)
    with pytest.raises(CorruptIndex, match="67 bytes"):
        index.read(fs)


def segment_with(fs: MemoryFileSystem, base_offset: int, count: int) -> Segment:
    segment = Segment(FileHandles(fs), "/data", base_offset)
    aborted = [
        AbortedTransaction(7, base_offset + 2 * i, base_offset + 2 * i + 1, base_offset + 2 * i + 2)
        for i in range(count)
    ]
    segment.set_aborted(aborted)
    return segment


def test_cache_reads_a_file_once_and_only_where_it_may_block() -> None:
    fs, _ = make_index()
    segment = segment_with(fs, 100, 3)
    cache = TransactionIndexCache()
    with pytest.raises(NotCached):
        cache.read(segment, may_block=False)
    entries = cache.read(segment, may_block=True)
    assert len(entries) == 3
    assert cache.read(segment, may_block=False) is entries
    cache.forget(segment)
    with pytest.raises(NotCached):
        cache.read(segment, may_block=False)


def test_cache_forgets_what_was_not_asked_for_lately() -> None:
    fs, _ = make_index()
    segments = [segment_with(fs, base, 10) for base in (100, 200, 300)]
    cache = TransactionIndexCache(entries_max=25)
    for segment in segments:
        cache.read(segment, may_block=True)
    with pytest.raises(NotCached):
        cache.read(segments[0], may_block=False)
    assert len(cache.read(segments[1], may_block=False)) == 10


def abort(store: Store, producer_id: int) -> None:
    store.append_batch(
        make_batch(
            b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
    )
    store.append_batch(
        encode_end_transaction(
            ControlType.ABORT,
            offset=0,
            timestamp=1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
        )
    )


def test_index_cached_before_a_segment_wakes_is_forgotten_at_its_roll() -> None:
    """A thread reads the file of a segment that is then appended to, and sealed again."""
    store = Store()
    abort(store, 7)
    store.restart()
    log = store.log()
    has_read, go_on = threading.Event(), threading.Event()
    read = TransactionIndex.read

    def read_slowly(
        self: TransactionIndex, fs: FileSystem, *, may_block: bool = True
    ) -> list[AbortedTransaction]:
        entries = read(self, fs, may_block=may_block)
        if threading.current_thread() is reader:
            has_read.set()
            go_on.wait()
        return entries

    reader = threading.Thread(target=lookup.aborted_transactions, args=(log, 0, log.log_end_offset))
    with mock.patch.object(TransactionIndex, "read", read_slowly):
        reader.start()
        has_read.wait()
        abort(store, 8)
        go_on.set()
        reader.join()
    log.roll(0)
    found = lookup.aborted_transactions(log, 0, log.log_end_offset)
    assert [aborted.producer_id for aborted in found] == [7, 8]
