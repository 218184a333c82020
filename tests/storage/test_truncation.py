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
from millstream.storage.steps import run_from_thread
from millstream.storage.truncation import truncate
from tests.storage.store import Store, apply_retention, make_batch, read_all, truncate_to


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
