"""Compaction: what stays, what goes, and that no crash makes it worse."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch, FileGone
from millstream.records.compression import Compression
from millstream.records.record import ControlType, encode_end_transaction
from millstream.storage.cleaner import (
    Cleaner,
    CleanerSettings,
    Throttle,
    read_first_dirty_offsets,
)
from millstream.storage.index import OffsetIndex, TimeIndex
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.transactions import AbortedTransaction
from tests.drawing import draws
from tests.storage.cleaning import (
    DAY_MS,
    CompactedStore,
    MortalFileSystem,
    PowerCut,
    Write,
    compacted,
    headers_of,
)
from tests.storage.store import DATA, TOPIC, apply_retention, truncate_to

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
VALUES = st.none() | st.binary(min_size=1, max_size=30)
WRITES = st.tuples(KEYS, VALUES)


def numbered(count: int, *, keys: int = 5) -> list[Write]:
    return [(b"key%d" % (i % keys), b"value%d" % i) for i in range(count)]


# What stays


def test_last_record_of_each_key_stays_at_its_offset() -> None:
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    stats = store.clean()
    assert store.read() == [store.written[offset] for offset in range(35, 40)]
    assert (stats.first_dirty_offset, stats.next_dirty_offset) == (0, 40)
    assert (stats.records_read, stats.records_kept) == (40, 5)


def test_active_segment_is_never_cleaned() -> None:
    store = CompactedStore()
    store.write_each(numbered(20))
    store.seal()
    store.write_each([(b"key0", b"new")] * 3)
    store.flush()
    store.clean()
    assert [record.offset for record in store.read()][-4:] == [19, 20, 21, 22]
    assert store.clean().records_read == 5  # the same segments again; the active one is left out


@pytest.mark.parametrize("compression", Compression)
def test_compressed_batches_are_cleaned_and_stay_compressed(compression: Compression) -> None:
    store = CompactedStore()
    for i in range(12):
        store.write((b"a", b"%d" % i), (b"b%d" % i, b"x"), compression=compression)
    store.seal()
    store.clean()
    assert store.values() == {b"a": b"11"} | {b"b%d" % i: b"x" for i in range(12)}
    assert len(store.read()) == 13
    kinds = {header.compression for header in headers_of(store.log()) if header.record_count}
    assert kinds == {compression}


def test_batch_larger_than_the_buffer_is_cleaned() -> None:
    store = CompactedStore(config=compacted(segment_bytes=100_000))
    store.write((b"a", b"x" * 5_000), (b"b", b"y" * 5_000))
    store.write((b"a", b"z" * 3_000))
    store.seal()
    store.clean()
    assert [record.offset for record in store.read()] == [1, 2]


def test_small_segments_become_one() -> None:
    store = CompactedStore()
    store.write_each(numbered(60))
    store.seal()
    assert len(store.log().segments) > 5
    store.log().update_config(compacted(segment_bytes=10_000))
    assert store.clean().segments_after == 1
    assert len(store.log().segments) == 2
    assert len(store.read()) == 5


def test_indexes_of_a_cleaned_segment_lead_to_its_batches() -> None:
    store = CompactedStore(config=compacted(segment_bytes=3_000))
    store.write_each(numbered(100, keys=60))
    store.seal()
    store.clean()
    points = 0
    for segment in store.log().segments[:-1]:
        batches = dict(segment.walk(0, may_block=True))
        index = OffsetIndex(segment.path(".index"))
        index.load(store.fs)
        for relative, position in (index[i] for i in range(len(index))):
            assert batches[position].last_offset == segment.base_offset + relative
            points += 1
        times = TimeIndex(segment.path(".timeindex"))
        times.load(store.fs)
        assert times.is_sorted()
        assert times.last is not None
        assert times.last[0] == max(header.max_timestamp for header in batches.values())
    assert points > 5
    for offset in range(100):
        found = store.log().read(offset, max_bytes=1, end_offset=100, may_block=True)
        assert found


def test_records_read_while_cleaned_segments_take_their_place() -> None:
    store = CompactedStore()
    store.write_each(numbered(60))
    store.seal()
    old = store.log().segments[0]
    log = store.log()
    position = log._position

    def clean_on_the_way(segment: Segment, offset: int, *, may_block: bool) -> int | None:
        if segment is old:
            old.release()
            store.clean()
        return position(segment, offset, may_block=may_block)

    with mock.patch.object(Log, "_position", staticmethod(clean_on_the_way)):
        data = log.read(0, max_bytes=100_000, end_offset=log.log_end_offset, may_block=True)
    assert old not in log.segments
    with pytest.raises(FileGone):
        old.read_at(1, 0, may_block=True)
    assert data == log.segments[0].read_at(len(data), 0, may_block=True)


# Tombstones


def test_tombstone_outlives_its_cleaning_by_the_retention() -> None:
    store = CompactedStore()
    store.write_each([(b"a", b"1"), (b"a", None), (b"b", b"2")])
    store.seal()
    store.clean()
    assert store.values() == {b"a": None, b"b": b"2"}
    store.clock.advance(DAY_MS - 1)
    store.clean()
    assert store.values() == {b"a": None, b"b": b"2"}
    store.clock.advance(1)
    store.clean()
    assert store.values() == {b"b": b"2"}


def test_timestamps_survive_the_horizon() -> None:
    store = CompactedStore()
    store.write((b"a", None), (b"b", b"2"))
    store.seal()
    store.clean()
    assert store.read() == [store.written[0], store.written[1]]
    (header,) = headers_of(store.log())
    assert header.delete_horizon_ms == store.clock.now_ms() + DAY_MS


# The map of keys


def test_full_map_ends_the_cleaning_where_it_is_full() -> None:
    store = CompactedStore(
        settings=CleanerSettings(dedupe_buffer_bytes=24 * 12, io_buffer_bytes=150)
    )
    store.write_each(numbered(50, keys=25))
    store.seal()
    stats = store.clean()
    assert stats.next_dirty_offset == 10
    assert len(store.read()) == 50
    rounds = 1
    while store.plan().dirty_bytes:
        store.clean()
        rounds += 1
    assert store.read() == [store.written[offset] for offset in range(25, 50)]
    assert rounds > 3


def test_map_takes_no_more_memory_than_there_are_records() -> None:
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    assert store.clean().map_utilization == pytest.approx(5 / 46, rel=0.05)


# Producers


def test_batch_with_a_producers_last_sequence_stays_without_records() -> None:
    store = CompactedStore()
    for i in range(3):
        store.write((b"a", b"%d" % i), producer_id=7, base_sequence=i)
    store.write_each([*numbered(10), (b"a", b"last")])
    store.seal()
    store.clean()
    kept = [header for header in headers_of(store.log()) if header.producer_id == 7]
    assert [(each.last_offset, each.last_sequence, each.record_count) for each in kept] == [
        (2, 2, 0)
    ]
    assert store.values()[b"a"] == b"last"
    store.kill()
    assert store.log().producers[7].batches[-1].last_sequence == 2


def test_last_batch_of_a_cleaned_segment_keeps_the_segments_end() -> None:
    store = CompactedStore()
    store.write_each([(b"a", b"%d" % i) for i in range(30)])
    store.seal()
    ends = [segment.base_offset for segment in store.log().segments[1:]]
    store.clean()
    for segment in store.log().segments[:-1]:
        *_, (_, last) = segment.walk(0, may_block=True)
        assert last.next_offset in ends
    store.kill()
    assert store.values() == {b"a": b"29"}
    assert store.log().log_end_offset == 30


# Transactions


def end_transaction(store: CompactedStore, kind: ControlType, producer_id: int) -> int:
    marker = encode_end_transaction(
        kind,
        offset=0,
        timestamp=store.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
    )
    return store.append_batch(marker).first_offset


def data_of(store: CompactedStore) -> dict[bytes | None, bytes | None]:
    """What a read-committed reader of a cleaned log ends up with: markers are not data."""
    return {key: value for key, value in store.values().items() if key and key[0] != 0}


def aborted_in(store: CompactedStore) -> list[AbortedTransaction]:
    return [aborted for segment in store.log().segments for aborted in segment.read_aborted()]


def test_aborted_records_go_and_hide_no_others() -> None:
    store = CompactedStore()
    store.write((b"a", b"good"))
    store.write((b"a", b"aborted"), producer_id=3, base_sequence=0, is_transactional=True)
    end_transaction(store, ControlType.ABORT, 3)
    store.write((b"b", b"committed"), producer_id=4, base_sequence=0, is_transactional=True)
    end_transaction(store, ControlType.COMMIT, 4)
    store.seal()
    store.clean()
    assert data_of(store) == {b"a": b"good", b"b": b"committed"}


def test_markers_go_after_their_records_and_their_time() -> None:
    store = CompactedStore()
    store.write((b"a", b"1"), producer_id=3, base_sequence=0, is_transactional=True)
    first = end_transaction(store, ControlType.COMMIT, 3)
    store.write((b"a", b"2"), producer_id=3, base_sequence=1, is_transactional=True)
    end_transaction(store, ControlType.COMMIT, 3)
    store.write((b"z", b"end"))
    store.seal()

    def has_marker() -> bool:
        return any(
            header.base_offset == first and header.record_count
            for header in headers_of(store.log())
        )

    store.clean()  # takes (a, 1) away; its marker still has a record before it
    assert has_marker()
    store.clean()  # finds the transaction empty: the marker's time begins
    assert has_marker()
    store.clock.advance(DAY_MS)
    store.clean()
    assert not has_marker()
    assert data_of(store) == {b"a": b"2", b"z": b"end"}


def test_index_of_aborted_transactions_is_written_anew() -> None:
    store = CompactedStore()
    store.write((b"a", b"aborted"), producer_id=3, base_sequence=0, is_transactional=True)
    end_transaction(store, ControlType.ABORT, 3)
    # A later batch holds the producer's last sequence; else the aborted one would stay, empty.
    store.write((b"b", b"2"), producer_id=3, base_sequence=1)
    store.write_each(numbered(5))
    store.seal()
    store.clean()
    assert [each.producer_id for each in aborted_in(store)] == [3]
    store.clean()  # none of its records is left: nothing to be skipped
    assert aborted_in(store) == []


def test_open_transaction_is_not_cleaned() -> None:
    store = CompactedStore()
    store.write_each(numbered(10))
    store.write((b"key1", b"open"), producer_id=3, base_sequence=0, is_transactional=True)
    store.write_each(numbered(10))
    store.seal()
    assert store.plan().upper_bound <= 10
    store.clean()
    assert [record.offset for record in store.read()][-11:] == list(range(10, 21))


# When things change or fail


def test_cleaning_of_a_log_that_is_truncated_meanwhile_is_given_up() -> None:
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    log = store.log()
    calls: list[Any] = []

    def on_owner(action: Any) -> Any:
        calls.append(action)
        if len(calls) == 3:  # the plan, the settling, and now the first swap
            truncate_to(log, 10)
        return action()

    cleaner = Cleaner(on_owner=on_owner)
    logs = lambda: [(log, log.log_end_offset)]  # noqa: E731
    assert cleaner.clean_filthiest(logs, store.clock.now_ms()) is None
    assert store.read() == [store.written[offset] for offset in range(10)]
    assert not store.files(".cleaned")
    assert not store.files(".swap")


def test_cleaning_of_a_log_that_retention_shortens_meanwhile_is_given_up() -> None:
    config = compacted(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10 * DAY_MS)
    store = CompactedStore(config=config)
    store.write_each(numbered(40))
    store.seal()
    log = store.log()
    calls: list[Any] = []

    def on_owner(action: Any) -> Any:
        calls.append(action)
        if len(calls) == 4:  # between `.swap` and the replacement
            apply_retention(log, store.clock.now_ms() + 20 * DAY_MS)
        return action()

    cleaner = Cleaner(on_owner=on_owner)
    cleaner.clean_filthiest(lambda: [(log, log.log_end_offset)], store.clock.now_ms())
    assert log.log_start_offset == 40
    assert not store.files(".swap")
    store.kill()
    assert store.read() == []
    assert store.log().log_end_offset == 40


def test_cleaning_is_given_up_when_the_broker_stops() -> None:
    stopping = threading.Event()
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    before = store.read()

    def on_owner(action: Any) -> Any:
        result = action()
        stopping.set()
        return result

    log = store.log()
    cleaner = Cleaner(on_owner=on_owner, stopping=stopping)
    assert cleaner.clean_filthiest(lambda: [(log, 40)], store.clock.now_ms()) is None
    assert store.read() == before


def test_throttled_cleaning_does_not_hold_up_a_stop() -> None:
    stopping = threading.Event()
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    slow = CleanerSettings(io_buffer_bytes=150, io_max_bytes_per_second=0.001)
    cleaner = Cleaner(slow, stopping=stopping)
    log = store.log()
    cleaning = threading.Thread(
        target=cleaner.clean_filthiest, args=(lambda: [(log, 40)], store.clock.now_ms())
    )
    cleaning.start()
    stopping.set()
    cleaning.join()  # at that rate it would sleep for days
    assert len(store.read()) == 40


def test_full_disk_stops_a_cleaning_and_nothing_else() -> None:
    store = CompactedStore()
    store.write_each(numbered(40, keys=30))
    store.seal()
    store.fs.fail_writes_after(60)
    log = store.log()
    logs = lambda: [(log, log.log_end_offset)]  # noqa: E731
    assert store.cleaner.clean_filthiest(logs, store.clock.now_ms()) is None
    check_readable(store)
    assert len(store.read()) > 30
    assert not store.files(".cleaned")
    assert log.directory.failure is None
    store.fs.fail_writes_after(None)
    assert store.cleaner.clean_filthiest(logs, store.clock.now_ms()) is not None


def test_failing_sync_takes_the_directory_down() -> None:
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    log = store.log()
    store.fs.fail_next_sync(".cleaned")
    store.cleaner.clean_filthiest(lambda: [(log, log.log_end_offset)], store.clock.now_ms())
    assert log.directory.failure is not None
    store.crash()
    assert store.read() == [store.written[offset] for offset in range(40)]


def test_corrupt_batch_stops_the_cleaning_and_is_named() -> None:
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    path = store.log().segments[1].handle.path
    store.fs.flip(path, 75)
    with pytest.raises(CorruptBatch, match=path):
        store.clean()
    log = store.log()
    logs = lambda: [(log, log.log_end_offset)]  # noqa: E731
    assert store.cleaner.clean_filthiest(logs, store.clock.now_ms()) is None
    assert not store.cleaner.clean_filthiest(logs, store.clock.now_ms())
    assert not store.files(".cleaned")


# Choosing and remembering


def test_filthiest_log_is_cleaned_and_remembered() -> None:
    store = CompactedStore()
    store.write_each(numbered(40))
    store.seal()
    log = store.log()
    logs = lambda: [(log, log.log_end_offset)]  # noqa: E731
    assert store.cleaner.clean_filthiest(logs, store.clock.now_ms()) is not None
    assert read_first_dirty_offsets([log.directory]) == {(TOPIC, 0): 40}
    assert store.fs.exists(f"{DATA}/cleaner-offset-checkpoint")
    assert store.cleaner.clean_filthiest(logs, store.clock.now_ms()) is None
    store.restart()
    log = store.log()
    assert store.cleaner.clean_filthiest(logs, store.clock.now_ms()) is None


def test_reads_go_on_while_a_thread_cleans() -> None:
    """The cleaner in its thread, its steps on ours: every read in between is right."""
    store = CompactedStore()
    store.write_each(numbered(200))
    store.seal()
    steps: list[tuple[Any, threading.Event, list[Any]]] = []
    arrived = threading.Semaphore(0)

    def on_owner(action: Any) -> Any:
        done, result = threading.Event(), []
        steps.append((action, done, result))
        arrived.release()
        done.wait()
        return result[0]

    plan = store.plan()
    cleaner = Cleaner(CleanerSettings(io_buffer_bytes=150), on_owner=on_owner)
    thread = threading.Thread(target=cleaner.clean, args=(plan,), daemon=True)
    thread.start()
    expected = {b"key%d" % key: b"value%d" % (195 + key) for key in range(5)}
    while thread.is_alive() or steps:
        if not arrived.acquire(timeout=0.05):
            continue
        action, done, result = steps.pop(0)
        result.append(action())
        assert store.values() == expected
        done.set()
    thread.join()
    assert len(store.read()) == 5


def test_throttle_sleeps_off_what_was_spent() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(1_000.0, clock=lambda: now[0], sleep=sleep)
    throttle.spend(500)
    assert slept == []
    throttle.spend(2_000)
    assert slept == [pytest.approx(0.5)]
    throttle.spend(1)
    assert slept[1] == pytest.approx(2.0)
    now[0] += 10
    throttle.spend(1_000)
    assert len(slept) == 2


# Crashes


def filled_store(batches: list[list[Write]], compressions: list[Compression]) -> CompactedStore:
    store = CompactedStore(fs=MortalFileSystem())
    for number, writes in enumerate(batches):
        compression = compressions[number % len(compressions)]
        store.write(*writes, compression=compression, producer_id=1, base_sequence=0)
    store.seal()
    return store


def check_readable(store: CompactedStore) -> None:
    """Latest value per key, offsets and order as written, end where it was."""
    read = store.read()
    offsets = [record.offset for record in read]
    assert offsets == sorted(set(offsets))
    assert all(record == store.written[record.offset] for record in read)
    latest = {record.key: record for record in store.written.values()}
    seen = {record.key: record for record in read}
    for key, record in latest.items():
        if record.value is not None:
            assert seen.get(key) == record
        else:
            assert key not in seen or seen[key].value is None
    assert store.log().log_end_offset == max(store.written) + 1


BATCHES = st.lists(st.lists(WRITES, min_size=1, max_size=4), min_size=3, max_size=25)
CODECS = st.lists(st.sampled_from(Compression), min_size=1, max_size=3)


@given(batches=BATCHES, codecs=CODECS, seed=st.integers(0, 2**32), cut=st.integers(1, 200))
@settings(max_examples=draws(60), deadline=None)
def test_crash_at_any_operation_of_a_cleaning_leaves_a_readable_log(
    batches: list[list[Write]], codecs: list[Compression], seed: int, cut: int
) -> None:
    store = filled_store(batches, codecs)
    fs = store.fs
    assert isinstance(fs, MortalFileSystem)
    random = Random(seed)
    for _ in range(3):
        fs.operations_left = cut
        try:
            store.clean()
            fs.operations_left = None
        except PowerCut:
            store.crash(seed if random.random() < 0.7 else None)
        check_readable(store)
        seen = store.read()
        store.kill()
        assert store.read() == seen  # recovery again changes nothing
        store.write((b"a", b"later"), (b"b", None))
        store.seal()
        store.clock.advance(random.choice([0, DAY_MS]))
        cut = random.randint(1, 200)
    store.clean()
    check_readable(store)
    counts = Counter(record.key for record in store.read())
    assert all(count == 1 for count in counts.values())


def test_crash_at_every_single_operation_of_one_cleaning() -> None:
    batches: list[list[Write]] = [[write] for write in numbered(24)]
    batches += [[(b"key1", None)], [(b"key2", b"new"), (b"other", b"x")]]
    operations = 0
    while True:
        operations += 1
        store = filled_store(batches, [Compression.NONE, Compression.LZ4])
        fs = store.fs
        assert isinstance(fs, MortalFileSystem)
        fs.operations_left = operations
        try:
            store.clean()
        except PowerCut:
            store.crash(operations)
            check_readable(store)
            store.clean()
            check_readable(store)
        else:
            break
    assert operations > 40


@given(
    rounds=st.lists(st.lists(WRITES, min_size=1, max_size=20), min_size=1, max_size=5),
    map_keys=st.integers(2, 12),
)
@settings(deadline=None)
def test_any_sequence_of_writes_and_cleanings_keeps_the_latest(
    rounds: list[list[Write]], map_keys: int
) -> None:
    settings = CleanerSettings(dedupe_buffer_bytes=24 * map_keys, io_buffer_bytes=100)
    store = CompactedStore(settings=settings)
    for writes in rounds:
        store.write_each(writes)
        store.seal()
        store.clean()
        store.clock.advance(DAY_MS // 2)
        check_readable(store)
