"""Acknowledged means durable: what a flush promises, and in which order it keeps the promise."""

from __future__ import annotations

from unittest import mock

import pytest

from millstream.errors import ApiError, ErrorCode
from millstream.storage import flush as flush_module
from millstream.storage.filesystem import SYNCED_ONE_BY_ONE_MAX
from millstream.storage.flush import GroupFlush
from tests.storage.store import DATA, Store, apply_retention, read_all, truncate_to

MANY = range(flush_module.FEW_FILES_MAX + 3)


def syncs(store: Store) -> list[str]:
    return [operation.path for operation in store.fs.operations if operation.name == "fdatasync"]


def settled_store(partitions: range = MANY) -> Store:
    """Logs that exist durably, so that only what is appended from now on is to be flushed."""
    store = Store()
    for partition in partitions:
        store.log(partition)
    store.flush(*partitions, to_segments=True)
    for partition in partitions:
        store.append(b"one", partition=partition)
    store.flush(*partitions, to_segments=True)
    store.fs.operations.clear()
    return store


def test_little_data_of_few_files_is_made_durable_by_the_journal() -> None:
    store = settled_store()
    store.append(b"x", partition=1)
    store.flush(1)
    assert syncs(store) == [f"{DATA}/millstream-journal-0"]
    assert (store.log(1).recovery_point, store.log(1).flushed_offset) == (1, 2)
    store.crash()
    assert [record.value for record in read_all(store.log(1))] == [b"one", b"x"]


def test_more_data_of_few_files_is_synced_in_the_files_themselves() -> None:
    store = settled_store()
    store.append(b"x" * flush_module.JOURNALED_BYTES_OF_FEW_MAX, partition=1)
    store.flush(1)
    assert syncs(store) == [f"{DATA}/orders-1/{0:020d}.log"]
    assert store.log(1).recovery_point == store.log(1).flushed_offset == 2


def test_many_files_are_made_durable_by_the_journal_alone() -> None:
    store = settled_store()
    for partition in MANY:
        store.append(b"x", partition=partition)
    store.flush(*MANY)
    assert syncs(store) == [f"{DATA}/millstream-journal-0"]
    assert {store.log(partition).flushed_offset for partition in MANY} == {2}
    assert {store.log(partition).recovery_point for partition in MANY} == {1}


def test_much_data_per_file_is_not_written_twice() -> None:
    store = settled_store()
    for partition in MANY:
        store.append(b"x" * 2 * flush_module.JOURNALED_BYTES_PER_FILE_MAX, partition=partition)
    store.flush(*MANY)
    assert f"{DATA}/millstream-journal-0" not in syncs(store)
    assert len(syncs(store)) == len(MANY)


def test_acknowledged_writes_never_wait_for_the_whole_filesystem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = range(2 * SYNCED_ONE_BY_ONE_MAX)
    store = settled_store(many)
    whole: list[str] = []
    monkeypatch.setattr(store.fs, "sync_all", lambda root, paths: whole.append(root))
    for partition in many:
        store.append(b"x" * 2 * flush_module.JOURNALED_BYTES_PER_FILE_MAX, partition=partition)
    store.flush(*many)
    assert (whole, len(syncs(store))) == ([], len(many))
    for partition in many:
        store.append(b"x", partition=partition)
    store.flush(*many, to_segments=True)
    assert whole == [DATA]  # in the background


def test_first_flush_of_many_logs_syncs_them_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with acks=all: what other programs wrote must not delay it."""
    many = range(2 * SYNCED_ONE_BY_ONE_MAX)
    store = Store()
    whole: list[str] = []
    monkeypatch.setattr(store.fs, "sync_all", lambda root, paths: whole.append(root))
    for partition in many:
        store.append(b"x", partition=partition)
    store.flush(*many)
    assert whole == []
    store.crash()
    assert {store.log(partition).log_end_offset for partition in many} == {1}


def test_flush_comes_after_the_write_that_it_covers() -> None:
    store = settled_store()
    store.append(b"x", partition=0)
    log = store.log(0)
    assert log.flushed_offset == 1
    store.flush(0)
    assert log.flushed_offset == 2
    segment, journal = f"{DATA}/orders-0/{0:020d}.log", f"{DATA}/millstream-journal-0"
    found = [(it.name, it.path) for it in store.fs.operations if it.name in ("write", "fdatasync")]
    assert found[0] == ("write", segment)
    assert set(found[1:-1]) == {("write", journal)}
    assert found[-1] == ("fdatasync", journal)


def test_appends_after_prepare_are_not_promised() -> None:
    store = settled_store()
    store.append(b"covered", partition=0)
    flush = GroupFlush.prepare([store.log(0)])
    store.append(b"late", partition=0)
    flush.execute()
    flush.complete(0)
    assert store.log(0).flushed_offset == 2
    store.flush(0)
    assert store.log(0).flushed_offset == 3


def test_second_flush_prepared_meanwhile_covers_both() -> None:
    """The first flush took the copies in memory; the second must find its bytes elsewhere."""
    store = settled_store()
    for partition in MANY:
        store.append(b"first", partition=partition)
    logs = [store.log(partition) for partition in MANY]
    first = GroupFlush.prepare(logs)
    for partition in MANY:
        store.append(b"second", partition=partition)
    second = GroupFlush.prepare(logs)
    second.execute()
    second.complete(0)
    assert logs[0].flushed_offset == 3
    first.execute()
    first.complete(0)
    assert logs[0].flushed_offset == 3
    store.crash()
    assert [record.value for record in read_all(store.log(0))] == [b"one", b"first", b"second"]


def test_flush_of_a_new_log_makes_its_names_durable_too() -> None:
    store = Store()
    for partition in MANY:
        store.append(b"x", partition=partition)
    store.flush(*MANY)
    store.crash()
    for partition in MANY:
        assert [record.value for record in read_all(store.log(partition))] == [b"x"]
        assert store.log(partition).topic_id is not None


def test_flush_after_a_roll_covers_both_segments_and_the_new_name() -> None:
    store = settled_store()
    store.append(b"old segment", partition=0)
    store.log(0).roll(0)
    store.append(b"new segment", partition=0)
    store.flush(0)
    store.crash()
    values = [record.value for record in read_all(store.log(0))]
    assert values == [b"one", b"old segment", b"new segment"]


def test_failed_sync_takes_the_directory_down_and_nothing_is_promised() -> None:
    store = settled_store()
    store.append(b"x", partition=0)
    store.fs.fail_next_sync()
    failed = store.flush(0)
    log = store.log(0)
    assert failed == [log]
    assert log.flushed_offset == 1
    with pytest.raises(ApiError) as raised:
        store.append(b"y", partition=1)  # in the same directory
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError):
        log.read(0, max_bytes=100, end_offset=1)


def test_failed_sync_is_never_tried_again() -> None:
    store = settled_store()
    store.append(b"x", partition=0)
    store.fs.fail_next_sync()
    store.flush(0)
    store.fs.operations.clear()
    assert store.flush(0) == []
    assert syncs(store) == []
    assert store.log(0).flushed_offset == 1


def test_failed_directory_leaves_the_other_alone() -> None:
    store = Store(paths=("/one", "/two"))
    first, second = store.log(0), store.log(1)
    assert {first.directory.path, second.directory.path} == {"/one", "/two"}
    store.flush(0, 1, to_segments=True)
    store.append(b"x", partition=0)
    store.append(b"x", partition=1)
    store.fs.fail_next_sync(f"{first.directory.path}/")
    assert store.flush(0, 1) == [first]
    assert second.flushed_offset == 1
    store.append(b"y", partition=1)


def test_truncation_during_a_flush_is_not_undone_by_it() -> None:
    store = settled_store()
    store.append(b"x", partition=0)
    log = store.log(0)
    flush = GroupFlush.prepare([log])
    flush.execute()
    truncate_to(log, 0)
    flush.complete(0)
    assert log.flushed_offset == log.recovery_point == 0


def test_retention_during_a_flush_does_not_fail_it() -> None:
    store = settled_store()
    store.append(b"x", partition=0)
    log = store.log(0)
    flush = GroupFlush.prepare([log])
    log.roll(0)
    log.delete_records_before(2)
    apply_retention(log, 0)
    store.directories.sweep()
    flush.execute()
    assert flush.complete(0) == []


def test_flush_of_clean_logs_is_empty() -> None:
    store = settled_store()
    assert GroupFlush.prepare([store.log(0)]).is_empty


def test_size_hints_at_the_cost() -> None:
    store = settled_store()
    for partition in MANY:
        store.append(b"x", partition=partition)
    flush = GroupFlush.prepare([store.log(partition) for partition in MANY])
    assert flush.size_bytes == sum(
        store.log(partition).active_segment.size - store.log(partition).active_segment.synced_bytes
        for partition in MANY
    )


def test_full_journal_is_retired_by_syncing_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    store = settled_store()
    journal = store.log(0).directory.journal
    monkeypatch.setattr(journal, "_bytes_max", 2000)
    assert store.directories.prepare_journal_retirement() is None
    while journal.full_log_ids() is None:
        for partition in MANY:
            store.append(b"x", partition=partition)
        store.flush(*MANY)
    flush = store.directories.prepare_journal_retirement()
    assert flush is not None
    assert store.directories.prepare_journal_retirement() is None  # one at a time
    flush.execute()
    flush.complete(0)
    store.directories.finish_journal_retirement()
    assert journal.full_log_ids() is None
    log = store.log(0)
    assert log.recovery_point == log.log_end_offset
    store.crash()
    assert store.log(0).log_end_offset == log.log_end_offset


def test_segment_begun_during_a_flush_is_durable_after_the_next() -> None:
    """A flush in the thread syncs the directory; the log rolls before the flush is completed."""
    store = settled_store(range(1))
    log = store.log(0)
    log.roll(store.clock.now_ms())
    store.append(b"two", partition=0)
    flush = GroupFlush.prepare([log])
    flush.execute()
    log.roll(store.clock.now_ms())
    store.append(b"three", partition=0)
    flush.complete(store.clock.now_ms())

    store.flush(0)
    assert log.flushed_offset == 3
    store.crash()
    assert [record.value for record in read_all(store.log(0))] == [b"one", b"two", b"three"]


def test_recovery_point_stays_before_what_only_the_journal_has() -> None:
    """A log rolls and goes on while a flush through the journal is under way."""
    store = settled_store()
    for partition in MANY:
        store.append(b"two", partition=partition)
    flush = GroupFlush.prepare([store.log(partition) for partition in MANY])
    flush.execute()
    log = store.log(0)
    log.roll(store.clock.now_ms())
    store.append(b"three", partition=0)
    flush.complete(store.clock.now_ms())

    assert log.flushed_offset == 2
    assert log.recovery_point == 1
    store.directories.checkpoint()
    store.crash()
    assert [record.value for record in read_all(store.log(0))][:2] == [b"one", b"two"]


def test_bytes_that_a_truncation_took_do_not_come_back_with_the_journal() -> None:
    store = settled_store()
    for partition in MANY:
        store.append(b"two", partition=partition)
    store.flush(*MANY)
    log = store.log(0)
    store.append(b"gone", partition=0)
    truncate_to(log, log.log_end_offset - 1)
    for partition in MANY:
        store.append(b"new", partition=partition)
    store.flush(*MANY)
    store.kill()
    assert [record.value for record in read_all(store.log(0))] == [b"one", b"two", b"new"]


def test_flush_that_was_not_executed_moves_nothing() -> None:
    store = Store()
    store.append(b"a")
    flush = GroupFlush.prepare([store.log()])
    with pytest.raises(RuntimeError, match="not executed"):
        flush.complete(0)
    assert store.log().flushed_offset == 0


def test_flush_that_ends_with_a_defect_fails_its_directory_and_moves_nothing() -> None:
    store = Store()
    store.append(b"a")
    flush = GroupFlush.prepare([store.log()])
    with mock.patch.object(store.fs, "fdatasync", side_effect=TypeError("a defect")):
        flush.execute()
    assert flush.complete(0) == [store.log()]
    assert store.log().flushed_offset == 0
    assert not store.directories.live_directories
