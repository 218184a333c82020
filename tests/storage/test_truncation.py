"""A log that is cut ends where it should, durably, and nobody sees what was cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError
from millstream.records.batch import parse_header
from millstream.storage import lookup
from millstream.storage.steps import run_from_thread, run_here
from millstream.storage.truncation import start_at, truncate
from tests.storage.cleaning import MortalFileSystem, PowerCut
from tests.storage.store import TOPIC, Store, apply_retention, make_batch, read_all, truncate_to


def make_store(**settings: object) -> Store:
    """Ten segments of one record each; record n has the timestamp 1000 * n."""
    store = Store(config=TopicConfig(segment_bytes=100, **settings))  # type: ignore[arg-type]
    for number in range(10):
        store.append(b"%d" % number, timestamp=1000 * number)
    return store


def test_truncation_cuts_at_a_batch_and_is_durable() -> None:
    store = make_store()
    store.flush(0)
    truncate_to(store.log(), 6)
    store.crash()
    log = store.log()
    assert [record.offset for record in read_all(log)] == list(range(6))
    assert store.append(b"again").first_offset == 6


def test_truncation_inside_a_batch_removes_the_batch() -> None:
    store = Store()
    store.append(b"a", b"b", b"c")
    store.append(b"d", b"e", b"f")
    truncate_to(store.log(), 4)
    assert store.log().log_end_offset == 3


def test_truncation_to_the_end_or_beyond_does_nothing() -> None:
    store = Store()
    store.append(b"a")
    truncate_to(store.log(), 1)
    truncate_to(store.log(), 100)
    assert store.log().log_end_offset == 1


def test_truncation_forgets_epochs_and_producers_of_what_went() -> None:
    store = Store()
    batches = [
        make_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=sequence)
        for sequence in range(3)
    ]
    for number, batch in enumerate(batches):
        store.append_batch(batch, epoch=number)
    log = store.log()
    truncate_to(log, 1)
    assert log.epochs.entries == ((0, 0),)
    assert log.check_producer(parse_header(batches[0])) is not None
    assert log.check_producer(parse_header(batches[1])) is None


def test_truncation_before_the_first_segment_begins_anew_there() -> None:
    store = make_store(retention_ms=5000)
    log = store.log()
    apply_retention(log, 8000)
    truncate_to(log, 3)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert store.append(b"x").first_offset == 3


def test_time_is_looked_up_rightly_after_a_truncation() -> None:
    store = Store(config=TopicConfig(index_interval_bytes=80))
    for number in range(30):
        store.append(b"%d" % number, timestamp=1000 * number)
    log = store.log()
    truncate_to(log, 10)
    found = lookup.offset_for_timestamp(log, lookup.MAX_TIMESTAMP)
    assert found is not None
    assert (found.timestamp, found.offset) == (9000, 9)
    assert lookup.offset_for_timestamp(log, 9001) is None


def test_truncation_saves_the_recovery_point_of_its_log_alone() -> None:
    store = Store()
    every = range(20)
    for partition in every:
        store.append(b"a", partition=partition)
        store.append(b"b", partition=partition)
    store.flush(*every, to_segments=True)
    store.directories.checkpoint()
    store.fs.operations.clear()
    truncate_to(store.log(7), 1)
    touched = {operation.path for operation in store.fs.operations}
    assert not [path for path in touched if "orders-" in path and "orders-7/" not in path + "/"]
    store.crash()
    assert [store.log(partition).log_end_offset for partition in (6, 7, 8)] == [2, 1, 2]


def test_nothing_is_appended_while_a_log_is_truncated() -> None:
    store = make_store()
    log = store.log()

    def append_meanwhile(action: Callable[[], Any]) -> Any:
        result = action()
        if log.is_truncating:
            with pytest.raises(ApiError, match="being truncated"):
                store.append(b"x")
        return result

    run_from_thread(truncate(log, 5), append_meanwhile)
    assert store.append(b"x").first_offset == 5


def test_cold_reader_leaves_no_position_of_what_was_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that reads is in the middle of its search when the log is cut and written again."""
    store = Store(config=TopicConfig(index_interval_bytes=1))
    for _ in range(20):
        store.append(b"old" * 5)
    log = store.log()
    segment = log.active_segment
    walk = type(segment).walk
    is_searching, is_cut = threading.Event(), threading.Event()
    results: list[bytes | bytearray] = []

    def walk_slowly(self: object, position: int, **options: bool) -> object:
        found = list(walk(segment, position, **options))
        if threading.current_thread() is reader:
            is_searching.set()
            is_cut.wait()
        return iter(found)

    def read() -> None:
        results.append(log.read(4, max_bytes=500, end_offset=100, may_block=True))

    reader = threading.Thread(target=read)
    with monkeypatch.context() as patch:
        patch.setattr(type(segment), "walk", walk_slowly)
        reader.start()
        is_searching.wait()
        truncate_to(log, 5)
        for number in range(15):
            store.append(b"new" * (number + 1))
        is_cut.set()
        reader.join()
    values = [record.value for record in read_all(log)]
    assert values == [b"old" * 5] * 5 + [b"new" * (number + 1) for number in range(15)]
    assert parse_header(results[0]).base_offset == 4
    for offset in range(20):
        found = log.read(offset, max_bytes=1, end_offset=100)
        assert parse_header(found).base_offset == offset


def test_epochs_of_what_was_cut_off_do_not_come_back() -> None:
    """The follower had an epoch that the new leader never had, and gets batches of an older one."""
    store = Store()
    store.append(b"a", epoch=0)
    store.append(b"b", epoch=5)
    store.flush(0)
    store.directories.checkpoint()
    truncate_to(store.log(), 1)
    store.append(b"c", epoch=4)
    store.append(b"d", epoch=4)
    store.flush(0)
    store.crash()
    assert store.log().epochs.entries == ((0, 0), (4, 1))


def test_truncation_lowers_the_saved_high_watermark() -> None:
    store = Store()
    for value in (b"a", b"b", b"c"):
        store.append(value)
    store.flush(0)
    store.directories.checkpoint({(TOPIC, 0): 3})
    truncate_to(store.log(), 1)
    store.append(b"x")
    store.append(b"y")
    store.flush(0)
    store.crash()
    assert store.log().log_end_offset == 3
    assert store.directories.high_watermarks[TOPIC, 0] == 1


@pytest.mark.parametrize("offset", [0, 4, 100])
def test_emptied_log_starts_and_ends_at_the_offset(offset: int) -> None:
    store = make_store()
    batch = make_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    store.append_batch(batch, epoch=3)
    store.flush(0)
    log = store.log()
    run_here(start_at(log, offset))
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (offset,) * 3
    assert log.epochs.entries == ()
    assert log.check_producer(parse_header(batch)) is None
    assert store.append(b"new", epoch=2).first_offset == offset
    store.flush(0)
    store.crash()
    log = store.log()
    assert [record.value for record in read_all(log)] == [b"new"]
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset + 1)
    assert log.epochs.entries == ((2, offset),)
    assert not len(log.producers)


def test_log_without_files_can_be_emptied() -> None:
    store = Store()
    run_here(start_at(store.log(), 40))
    assert store.append(b"x").first_offset == 40
    store.flush(0)
    store.crash()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (40, 41)


def test_emptying_forgets_what_only_the_journal_has() -> None:
    store = make_store()
    for partition in range(1, 6):
        store.append(b"other", partition=partition)
    store.flush(*range(6))
    run_here(start_at(store.log(), 50))
    store.crash()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (50, 50)
    assert [record.value for record in read_all(store.log(3))] == [b"other"]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("offset", [50, 7])
def test_power_cut_while_emptying_leaves_a_prefix_or_nothing(seed: int | None, offset: int) -> None:
    """At each operation of the disk: and the epochs match what is left."""
    for operations in range(1, 200):
        fs = MortalFileSystem()
        store = Store(config=TopicConfig(segment_bytes=200), fs=fs)
        for number in range(6):
            store.append(b"%d" % number, timestamp=number, epoch=number)
        store.flush(0)
        store.directories.checkpoint({(TOPIC, 0): 6})
        fs.operations_left = operations
        try:
            run_here(start_at(store.log(), offset))
        except PowerCut:
            store.crash(seed)
        else:
            break
        log = store.log()
        left = read_all(log)
        assert [record.value for record in left] == [b"%d" % n for n in range(len(left))]
        if left:
            assert log.epochs.entries == tuple((n, n) for n in range(len(left)))
        else:
            assert log.log_end_offset in (0, offset)
            assert log.epochs.entries == ()
        run_here(start_at(log, offset))
        store.append(b"new", epoch=9)
        assert log.epochs.entries == ((9, offset),)
    else:
        pytest.fail("the log was never emptied")


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_power_cut_while_truncating_leaves_the_old_end_or_the_new(seed: int | None) -> None:
    for operations in range(1, 200):
        fs = MortalFileSystem()
        store = Store(config=TopicConfig(segment_bytes=200), fs=fs)
        for number in range(6):
            store.append(b"%d" % number, timestamp=number, epoch=number)
        store.flush(0)
        store.directories.checkpoint()
        fs.operations_left = operations
        try:
            truncate_to(store.log(), 3)
        except PowerCut:
            store.crash(seed)
        else:
            break
        log = store.log()
        end = log.log_end_offset
        assert 3 <= end <= 6
        assert [record.value for record in read_all(log)] == [b"%d" % n for n in range(end)]
        assert log.epochs.entries == tuple((n, n) for n in range(end))
        truncate_to(log, 3)
        store.append(b"new", epoch=2)
        store.flush(0)
        store.crash(seed)
        assert store.log().epochs.entries == ((0, 0), (1, 1), (2, 2))
    else:
        pytest.fail("the log was never truncated")


def test_nothing_is_appended_while_a_log_is_emptied() -> None:
    store = make_store()
    log = store.log()

    def append_meanwhile(action: Callable[[], Any]) -> Any:
        result = action()
        if log.is_truncating:
            with pytest.raises(ApiError, match="being truncated"):
                store.append(b"x")
        return result

    run_from_thread(start_at(log, 77), append_meanwhile)
    assert store.append(b"x").first_offset == 77
