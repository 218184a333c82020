"""What is removed from a log's start."""

from __future__ import annotations

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode
from millstream.storage import retention
from millstream.storage.retention import Candidate, apply_all
from millstream.storage.steps import run_here
from tests.storage.store import Store, apply_retention, make_batch, read_all, truncate_to


def make_store(**settings: object) -> Store:
    """Ten segments of one record each; record n has the timestamp 1000 * n."""
    store = Store(config=TopicConfig(segment_bytes=100, **settings))  # type: ignore[arg-type]
    for number in range(10):
        store.append(b"%d" % number, timestamp=1000 * number)
    assert len(store.log().segments) == 10
    return store


def test_retention_by_time_removes_what_is_older() -> None:
    store = make_store(retention_ms=5000)
    log = store.log()
    removed = apply_retention(log, 8000)
    assert log.log_start_offset == 3  # 3000 is exactly five seconds old
    assert removed == 3 * 69
    assert [record.offset for record in read_all(log)] == list(range(3, 10))


def test_retention_by_time_may_take_everything_and_keeps_the_log_end() -> None:
    store = make_store(retention_ms=5000)
    log = store.log()
    store.flush(0)
    apply_retention(log, 10**9)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert log.size_bytes == 0
    store.directories.sweep()
    store.directories.checkpoint()
    store.crash()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (10, 10)
    assert store.append(b"next").first_offset == 10


def test_log_end_that_only_the_journal_knows_survives_the_deletion_of_all_records() -> None:
    store = Store()
    every = range(7)
    for partition in every:
        store.append(b"a", partition=partition)
        store.log(partition).roll(store.clock.now_ms())
    store.flush(*every, to_segments=True)
    for partition in every:
        store.append(b"b", partition=partition)
    store.flush(*every)
    log = store.log()
    assert log.active_segment.synced_bytes < log.active_segment.durable_bytes
    log.delete_records_before(2)
    apply_retention(log, store.clock.now_ms())
    store.directories.checkpoint()
    store.crash()
    assert (store.log().log_start_offset, store.log().log_end_offset) == (2, 2)


def test_retention_of_an_empty_log_does_nothing() -> None:
    store = make_store(retention_ms=5000)
    apply_retention(store.log(), 10**9)
    assert apply_retention(store.log(), 10**9) == 0


def test_retention_by_size_keeps_at_least_so_much() -> None:
    store = make_store(retention_ms=-1, retention_bytes=69 * 4)
    log = store.log()
    apply_retention(log, 0)
    assert log.log_start_offset == 6
    assert log.size_bytes == 69 * 4


def test_retention_without_limits_keeps_all() -> None:
    store = make_store(retention_ms=-1)
    assert apply_retention(store.log(), 10**15) == 0


def test_compacted_log_loses_only_what_lies_before_its_start() -> None:
    store = make_store(retention_ms=1, cleanup_policy=frozenset({"compact"}))
    log = store.log()
    assert apply_retention(log, 10**15) == 0
    log.delete_records_before(4)
    apply_retention(log, 10**15)
    assert log.segments[0].base_offset == 4


def test_retention_does_not_pass_the_high_watermark() -> None:
    store = make_store(retention_ms=1)
    log = store.log()
    run_here(apply_all([Candidate(log, 4, lambda: None)], 10**15))
    assert log.log_start_offset == 4


def test_log_that_changes_while_the_disk_syncs_is_left_alone() -> None:
    store = make_store(retention_ms=5000)
    log = store.log()
    steps = retention.apply(log, 8000)
    sync = steps.send(next(steps)())
    truncate_to(log, 2)
    with pytest.raises(StopIteration) as end:
        steps.send(sync())
    assert end.value.value == 0
    assert [record.offset for record in read_all(log)] == [0, 1]


def test_log_that_was_appended_to_meanwhile_keeps_its_active_segment() -> None:
    store = Store(config=TopicConfig(retention_ms=5000))
    store.append(b"old", timestamp=0)
    log = store.log()
    steps = retention.apply(log, 8000)
    find_expired = next(steps)
    expired = find_expired()
    store.append(b"new", timestamp=8000)
    with pytest.raises(StopIteration):
        steps.send(expired)
    assert log.log_start_offset == 0


def test_timestamps_that_another_thread_has_read_do_not_replace_newer_ones() -> None:
    store = Store(config=TopicConfig(retention_ms=5000))
    store.append(b"old", timestamp=0)
    store.restart()
    log = store.log()
    steps = retention.apply(log, 8000)
    expired = next(steps)()
    store.append(b"new", timestamp=8000)
    with pytest.raises(StopIteration):
        steps.send(expired)
    assert log.active_segment.max_timestamp == 8000


def test_log_that_cannot_be_read_does_not_keep_others_from_retention() -> None:
    store = make_store(retention_ms=5000)
    store.append(b"x", partition=1, timestamp=0)
    store.restart()
    broken, other = store.log(1), store.log(0)
    store.fs.flip(broken.active_segment.handle.path, 16)  # the magic byte
    candidates = [Candidate(log, log.log_end_offset, lambda: None) for log in (broken, other)]
    assert run_here(apply_all(candidates, 8000)) == 3 * 69


def test_files_of_deleted_segments_go_with_the_sweep() -> None:
    store = make_store(retention_ms=5000)
    apply_retention(store.log(), 8000)
    assert store.files(".deleted")
    store.directories.sweep()
    assert not store.files(".deleted")
    assert len(store.files(".log")) == 7


def test_leftover_deleted_files_go_at_the_next_start() -> None:
    store = make_store(retention_ms=5000)
    apply_retention(store.log(), 8000)
    store.kill()
    assert not store.files(".deleted")
    assert store.log().log_start_offset == 3


def test_delete_records_moves_the_start_and_survives_a_checkpoint() -> None:
    store = Store()
    for number in range(5):
        store.append(b"%d" % number, epoch=number)
    log = store.log()
    log.delete_records_before(3)
    log.delete_records_before(2)  # never backwards
    assert log.log_start_offset == 3
    assert log.epochs.entries == ((3, 3), (4, 4))
    with pytest.raises(ApiError) as raised:
        log.read(2, max_bytes=100, end_offset=5)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    store.flush(0)
    store.directories.checkpoint()
    store.crash()
    assert store.log().log_start_offset == 3


def test_delete_records_past_the_end_is_refused() -> None:
    store = Store()
    store.append(b"a")
    with pytest.raises(ApiError) as raised:
        store.log().delete_records_before(2)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_failing_disk_is_reported_as_such_and_takes_the_directory_down() -> None:
    store = make_store(retention_ms=5000)
    store.fs.fail_next_sync("orders-0")
    with pytest.raises(ApiError, match="cannot apply retention to orders-0") as raised:
        apply_retention(store.log(), 8000)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not store.directories.live_directories


def test_producers_of_records_that_were_deleted_are_known_after_a_power_cut() -> None:
    store = Store()
    store.append_batch(make_batch(b"x", producer_id=3, producer_epoch=1, base_sequence=0))
    log = store.log()
    log.roll(store.clock.now_ms())
    store.append(b"y")
    store.flush(to_segments=True)
    log.delete_records_before(1)
    assert apply_retention(log, store.clock.now_ms())
    store.directories.sweep()
    store.directories.checkpoint()
    store.crash()
    assert store.log().log_start_offset == 1
    assert store.log().producers[3].epoch == 1
