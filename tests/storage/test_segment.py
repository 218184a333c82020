"""One segment: its indexes, its copies in memory, and its readers in threads."""

from __future__ import annotations

import struct
import threading

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.storage.segment import Segment
from millstream.storage.transactions import AbortedTransaction
from tests.storage.store import DATA, Store, apply_retention

LOG = f"{DATA}/orders-0/{0:020d}.log"
INDEX = f"{DATA}/orders-0/{0:020d}.index"
TIME_INDEX = f"{DATA}/orders-0/{0:020d}.timeindex"


def indexed_store(count: int = 40) -> Store:
    store = Store(config=TopicConfig(index_interval_bytes=150))
    for number in range(count):
        store.append(b"%d" % number, b"y" * 20, timestamp=1000 + 10 * number)
    store.log().active_segment.save_indexes()
    return store


def test_index_entries_point_at_the_batch_that_ends_with_their_offset() -> None:
    store = indexed_store()
    log = store.files(LOG)[LOG]
    batches = dict(iterate_headers(log))
    entries = list(struct.iter_unpack(">ii", store.files(INDEX)[INDEX]))
    assert len(entries) > 5
    for relative, position in entries:
        assert batches[position].last_offset == relative


def test_index_entries_are_about_an_interval_apart() -> None:
    store = indexed_store()
    positions = [position for _, position in struct.iter_unpack(">ii", store.files(INDEX)[INDEX])]
    for before, after in zip([0, *positions], positions, strict=False):
        assert 150 < after - before <= 150 + 2 * 110


def test_time_index_entries_strictly_increase_and_name_their_batch() -> None:
    store = indexed_store()
    by_last_offset = {
        header.last_offset: header for _, header in iterate_headers(store.files(LOG)[LOG])
    }
    entries = list(struct.iter_unpack(">qi", store.files(TIME_INDEX)[TIME_INDEX]))
    assert len(entries) > 5
    assert entries == sorted(set(entries))
    for timestamp, relative in entries:
        assert by_last_offset[relative].max_timestamp == timestamp


def test_sealed_segment_ends_its_time_index_with_the_largest_timestamp() -> None:
    store = Store()
    store.append(b"new", timestamp=9000)
    store.append(b"old", timestamp=1000)
    store.log().roll(0)
    assert store.files(TIME_INDEX)[TIME_INDEX] == struct.pack(">qi", 9000, 0)


@pytest.mark.parametrize("sealed", [False, True])
def test_locate_finds_every_offset(sealed: bool) -> None:
    store = indexed_store()
    segment = store.log().active_segment
    if sealed:
        segment.seal()
    for offset in range(80):
        found = segment.locate(offset, may_block=sealed)
        assert found is not None
        assert found[1].base_offset <= offset <= found[1].last_offset
    assert segment.locate(80, may_block=True) is None


def test_walk_stops_at_garbage_and_names_the_place() -> None:
    store = indexed_store()
    segment = store.log().active_segment
    store.fs.flip(LOG, 16, mask=0x40)  # the magic of the first batch
    with pytest.raises(CorruptBatch, match=f"{LOG} is corrupt at byte 0"):
        list(segment.walk(0, may_block=True))


def test_timestamps_are_found_again_after_a_restart() -> None:
    store = indexed_store()
    store.append(b"newest", timestamp=99_000)
    store.append(b"older", timestamp=5)
    store.restart()
    segment = store.log().active_segment
    segment.load_timestamps()
    assert (segment.max_timestamp, segment.max_timestamp_offset) == (99_000, 80)


def test_segment_woken_after_a_restart_goes_on_with_its_indexes() -> None:
    store = indexed_store()
    before = store.files(INDEX)[INDEX]
    store.restart()
    for number in range(20):
        store.append(b"%d" % number, timestamp=50_000 + number)
    store.log().active_segment.save_indexes()
    after = store.files(INDEX)[INDEX]
    assert after.startswith(before)
    assert len(after) > len(before)
    batches = dict(iterate_headers(store.files(LOG)[LOG]))
    for relative, position in struct.iter_unpack(">ii", after):
        assert batches[position].last_offset == relative


def test_copies_are_given_once_and_only_for_the_range_they_cover() -> None:
    store = Store()
    segment = store.log().active_segment
    store.append(b"a")
    assert segment.copies.take(0, segment.size) is None  # nothing was kept before the first flush
    start = segment.size
    store.append(b"b")
    store.append(b"c")
    assert segment.copies.take(start, segment.size) == store.files(LOG)[LOG][start:]
    store.append(b"d")
    assert segment.copies.take(start, segment.size) is None


def test_copies_are_bounded() -> None:
    store = Store()
    segment = store.log().active_segment
    segment.copies.take(0, segment.size)
    for _ in range(20):
        store.append(b"x" * 1000)
    assert segment.copies.take(0, segment.size) is None
    segment.copies.take(segment.size, segment.size)
    start = segment.size
    store.append(b"x" * 5000)  # too large to be copied
    assert segment.copies.take(start, segment.size) is None
    start = segment.size
    store.append(b"x")  # fits again: the bound counts from one flush to the next
    assert segment.copies.take(start, segment.size) == store.files(LOG)[LOG][start:]


def test_durable_bytes_only_grow_and_are_synced_if_so_said() -> None:
    segment = Store().log().active_segment
    segment.note_durable(10, synced=False)
    assert (segment.durable_bytes, segment.synced_bytes) == (10, 0)
    segment.note_durable(6, synced=True)
    assert (segment.durable_bytes, segment.synced_bytes) == (10, 6)


def test_readers_in_threads_survive_retention() -> None:
    """Segments go while threads read: a reader gets batches, or is told that they are gone."""
    store = Store(config=TopicConfig(segment_bytes=300))
    for number in range(300):
        store.append(b"%d" % number * 10)
    log = store.log()
    failures: list[BaseException] = []

    def read() -> None:
        for offset in range(299):
            try:
                data = log.read(offset, max_bytes=200, end_offset=300, may_block=True)
                assert next(iterate_headers(data))[1].last_offset >= offset
            except ApiError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    failures.append(error)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test reports it
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for offset in range(0, 300, 5):
        log.delete_records_before(offset)
        apply_retention(log, 0)
        store.directories.sweep()
    for thread in threads:
        thread.join()
    assert failures == []


def test_files_renamed_under_a_reader_are_still_found() -> None:
    store = indexed_store()
    log = store.log()
    log.roll(0)
    segment = log.segments[0]
    segment.change_suffix(".swap")
    segment.release()
    assert store.fs.exists(LOG + ".swap")
    assert segment.locate(33, may_block=True) is not None
    segment.change_suffix("")
    assert segment.locate(33, may_block=True) is not None
    assert store.fs.exists(LOG)


class RolledMeanwhile(Segment):
    """Sealed by another thread as soon as somebody has looked at what was aborted."""

    __slots__ = ()

    @property
    def aborted(self) -> list[AbortedTransaction] | None:  # type: ignore[override]
        found: list[AbortedTransaction] | None = Segment.aborted.__get__(self)  # type: ignore
        if found is not None:
            self.transaction_index.write(self.fs, found, sync=False)
            Segment.aborted.__set__(self, None)  # type: ignore
        return found


def test_aborted_transactions_are_read_while_another_thread_seals_the_segment() -> None:
    segment = indexed_store().log().active_segment
    aborted = AbortedTransaction(7, 10, 20, 10)
    segment.note_aborted(aborted)
    segment.__class__ = RolledMeanwhile
    assert segment.read_aborted() == [aborted]
    assert segment.read_aborted() == [aborted], "from the file"
