"""Logs deleted, and created again under the same name: nothing of the first is in the second."""

from __future__ import annotations

import threading
from random import Random

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode, FileGone, LogGone
from millstream.storage import lookup, names
from millstream.storage.checkpointing import save_recovery_point
from millstream.storage.checkpoints import read_offsets, write_offsets
from millstream.storage.cleaner import Cleaner
from millstream.storage.cleaner_plan import plan_cleaning
from millstream.storage.cleaner_segment import CleaningAborted
from millstream.storage.flush import GroupFlush, sync_segments
from millstream.storage.steps import run_here
from tests.storage.cleaning import CompactedStore
from tests.storage.store import DATA, TOPIC, Store, apply_retention, read_all, truncate_to

NAME = (TOPIC, 0)


def mentioned(store: Store) -> set[str]:
    """The checkpoint files that mention the log."""
    return {
        name
        for name in names.OFFSET_CHECKPOINTS
        if NAME in read_offsets(store.fs, f"{DATA}/{name}")
    }


def store_with_a_past() -> Store:
    """Three partitions of 100 records; the first starts at 60; all of it is in the checkpoints."""
    store = Store()
    for partition in range(3):
        for number in range(100):
            store.append(b"old-%d" % number, partition=partition)
    store.flush(0, 1, 2, to_segments=True)
    store.log(0).delete_records_before(60)
    store.directories.checkpoint()
    write_offsets(store.fs, f"{DATA}/{names.CLEANER_OFFSETS}", {NAME: 50, (TOPIC, 1): 7})
    assert mentioned(store) == set(names.OFFSET_CHECKPOINTS)
    return store


def append_and_flush(store: Store) -> None:
    """Ten acknowledged records in each of three partitions: enough files for the journal."""
    for partition in range(3):
        for number in range(10):
            store.append(b"new-%d" % number, partition=partition)
    assert not store.flush(0, 1, 2)


def values(store: Store) -> list[bytes | None]:
    return [record.value for record in read_all(store.log(0))]


NEW_VALUES = [b"new-%d" % number for number in range(10)]


# What a new log inherits: nothing


def test_new_log_of_the_name_inherits_no_offset_after_a_kill() -> None:
    store = store_with_a_past()
    store.directories.delete(*NAME)
    append_and_flush(store)
    store.kill()
    assert store.log(0).log_start_offset == 0
    assert values(store) == NEW_VALUES


def test_new_log_of_the_name_inherits_no_recovery_point_after_a_power_cut() -> None:
    """Its acknowledged records are in the journal alone, far below the old recovery point."""
    store = store_with_a_past()
    store.directories.delete(*NAME)
    append_and_flush(store)
    store.crash()
    assert values(store) == NEW_VALUES


def test_journal_of_the_deleted_log_is_not_replayed_into_the_new_one() -> None:
    """Not even if it has the same topic id, as a replica that moves away and back."""
    store = Store()
    append_and_flush(store)
    for partition in range(3):
        store.append(b"more", partition=partition)
    assert not store.flush(0, 1, 2)
    store.directories.delete(*NAME)
    store.append(b"new")
    assert not store.flush(0)
    store.crash()
    assert values(store) == [b"new"]


def test_names_are_free_when_no_checkpoint_mentions_them() -> None:
    store = store_with_a_past()
    [deletion] = store.directories.prepare_deletions([store.directories.logs[NAME]])
    assert not store.directories.is_free(*NAME)
    deletion.execute()
    assert mentioned(store) == set()
    assert not store.directories.is_free(*NAME)
    deletion.complete()
    assert store.directories.is_free(*NAME)
    assert read_offsets(store.fs, f"{DATA}/{names.CLEANER_OFFSETS}") == {(TOPIC, 1): 7}


def test_many_logs_are_deleted_with_one_rewrite_of_the_checkpoints() -> None:
    store = Store()
    for partition in range(50):
        store.log(partition).create_files(0)
    store.directories.checkpoint()
    before = len(store.fs.operations)
    for deletion in store.directories.prepare_deletions(list(store.directories.logs.values())):
        deletion.execute()
        deletion.complete()
    syncs = [it for it in store.fs.operations[before:] if "sync" in it.name]
    assert len(syncs) < 10
    assert not store.directories.logs


def test_create_finishes_a_deletion_that_is_under_way() -> None:
    store = store_with_a_past()
    [deletion] = store.directories.prepare_deletions([store.directories.logs[NAME]])
    append_and_flush(store)
    assert store.directories.is_free(*NAME)
    deletion.execute()  # the thread comes late, and finds nothing to do
    deletion.complete()
    store.crash()
    assert values(store) == NEW_VALUES


def test_deletion_completed_without_being_executed_is_refused() -> None:
    store = store_with_a_past()
    [deletion] = store.directories.prepare_deletions([store.directories.logs[NAME]])
    with pytest.raises(RuntimeError):
        deletion.complete()
    assert not store.directories.is_free(*NAME)


# Crashes between the steps


@pytest.mark.parametrize("seed", range(40))
def test_crash_at_any_point_of_a_deletion_leaves_nothing_to_a_new_log(seed: int) -> None:
    random = Random(seed)
    store = store_with_a_past()
    fatal = len(store.fs.operations) + random.randrange(1, 16)
    record = store.fs._note

    def note_or_die(*args: object) -> None:
        if len(store.fs.operations) >= fatal:
            raise KeyboardInterrupt
        record(*args)  # type: ignore[arg-type]

    store.fs._note = note_or_die  # type: ignore[method-assign,assignment]
    try:
        store.directories.delete(*NAME)
        append_and_flush(store)
        acknowledged = True
    except KeyboardInterrupt:
        acknowledged = False
    store.fs._note = record  # type: ignore[method-assign]
    store.crash(seed)
    if acknowledged:
        assert values(store) == NEW_VALUES
        return
    if NAME in store.directories.logs:  # the metadata know that it is to go
        store.directories.delete(*NAME)
    append_and_flush(store)
    store.crash()
    assert values(store) == NEW_VALUES


def test_entries_left_by_a_crash_go_before_a_log_of_the_name_is_created() -> None:
    store = store_with_a_past()
    saved = {
        path: data for path, data in store.files("checkpoint").items() if "/orders" not in path
    }
    store.directories.delete(*NAME)
    store.directories.sweep()
    for path, content in saved.items():
        store.fs.pwritev(store.fs.open(path, create=True), [content], 0)
    store.kill()
    assert mentioned(store) == set(names.OFFSET_CHECKPOINTS)
    assert not store.directories.is_free(*NAME)
    append_and_flush(store)
    store.kill()
    assert values(store) == NEW_VALUES


def test_full_disk_keeps_the_name_taken_until_there_is_room() -> None:
    store = store_with_a_past()
    store.fs.fail_writes_after(0)
    store.directories.delete(*NAME)
    assert store.directories.live_directories
    with pytest.raises(ApiError, match="make room") as refused:
        store.log(0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    store.fs.fail_writes_after(None)
    append_and_flush(store)
    store.kill()
    assert values(store) == NEW_VALUES


def test_disk_that_fails_while_a_log_is_deleted_is_noticed() -> None:
    store = store_with_a_past()
    store.fs.fail_everything_under(f"{DATA}/orders-0")
    store.directories.delete(*NAME)
    assert not store.directories.live_directories


# Work that was under way


def test_everything_asked_of_a_deleted_log_says_that_it_is_gone() -> None:
    store = store_with_a_past()
    log = store.log(0)
    log.roll(0)
    old = log.segments[0]
    store.directories.delete(*NAME)
    store.append(b"new")
    for action in (
        lambda: log.read(60, max_bytes=1000, end_offset=100, may_block=True),
        lambda: lookup.offset_for_timestamp(log, 0),
        lambda: lookup.offset_for_timestamp(log, lookup.MAX_TIMESTAMP),
        lambda: lookup.end_of_damage(log, 60),
        lambda: log.roll(0),
        lambda: apply_retention(log, 0),
        lambda: truncate_to(log, 0),
        lambda: run_here(sync_segments(log, 0)),
        lambda: run_here(save_recovery_point(log)),
        lambda: log.held().__enter__(),
    ):
        with pytest.raises(LogGone) as gone:
            action()
        assert gone.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(FileGone):
        old.read_at(1, 0, may_block=True)
    with pytest.raises(FileGone):
        old.floor_position(70, may_block=True)
    assert values(store) == [b"new"]


@pytest.mark.parametrize("size", [10, 5_000, 100_000])
@pytest.mark.parametrize("deleted_before", ["execute", "complete"])
def test_flush_under_way_leaves_a_deleted_log_alone(size: int, deleted_before: str) -> None:
    """Small ones go to the journal, large ones are synced: neither is a failure of the disk."""
    store = Store()
    for partition in range(12):
        store.append(b"x" * size, partition=partition)
    old = store.log(0)
    flush = GroupFlush.prepare([store.log(partition) for partition in range(12)])
    if deleted_before == "complete":
        flush.execute()
    store.directories.delete(*NAME)
    store.append(b"new")
    if deleted_before == "execute":
        flush.execute()
    assert flush.complete(0) == []
    assert store.directories.live_directories
    assert old.flushed_offset == 0
    assert store.log(0).flushed_offset == 0
    assert store.log(1).flushed_offset == 1
    assert not store.flush(0)
    store.crash()
    assert values(store) == [b"new"]


def test_checkpoint_under_way_writes_nothing_of_a_deleted_log() -> None:
    store = store_with_a_past()
    store.append(b"x", epoch=7)  # so that a file of the log is to be written
    [checkpoint] = store.directories.prepare_checkpoints()
    store.directories.delete(*NAME)
    append_and_flush(store)
    files = {path for path in store.files() if "orders-0/" in path}
    checkpoint.execute()
    checkpoint.complete()
    assert mentioned(store) == set()
    assert {path for path in store.files() if "orders-0/" in path} == files
    store.kill()
    assert values(store) == NEW_VALUES


def test_deletion_waits_for_a_thread_that_works_in_the_directory() -> None:
    store = store_with_a_past()
    log = store.log(0)
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with log.held():
            inside.set()
            go_on.wait()
            assert store.fs.exists(f"{log.path}/{names.PARTITION_METADATA}")

    worker = threading.Thread(target=work)
    worker.start()
    inside.wait()
    [deletion] = store.directories.prepare_deletions([store.directories.logs[NAME]])
    deleter = threading.Thread(target=deletion.execute)
    deleter.start()
    assert store.fs.exists(log.path)
    go_on.set()
    worker.join()
    deleter.join()
    deletion.complete()
    assert not store.fs.exists(f"{log.path}/{names.PARTITION_METADATA}")


def test_cleaning_of_a_deleted_log_stops_before_anything_is_renamed() -> None:
    """At whatever step: each time, the log of the same name is whole."""
    for fatal_step in range(100):
        store = CompactedStore()
        store.write_each([(b"key%d" % (i % 3), b"value%d" % i) for i in range(60)])
        store.seal()
        log = store.log()
        steps = 0

        def on_owner(
            action: object, store: CompactedStore = store, fatal: int = fatal_step
        ) -> object:
            nonlocal steps
            if steps == fatal:
                store.directories.delete(*NAME)
                store.write_each([(b"new", b"1")])
                store.flush()
            steps += 1
            return action()  # type: ignore[operator]

        cleaner = Cleaner(on_owner=on_owner)
        plan = plan_cleaning(log, None, log.log_end_offset, store.clock.now_ms())
        try:
            cleaner.clean(plan)
        except (CleaningAborted, LogGone, FileGone):
            assert log.is_deleted
        if not log.is_deleted:
            assert fatal_step >= steps
            return
        assert [record.value for record in read_all(store.log())] == [b"1"]
        assert not [path for path in store.files() if "orders-0/" in path and "cleaned" in path]
        store.kill()
        assert [record.value for record in read_all(store.log())] == [b"1"]
        assert names.CLEANER_OFFSETS not in mentioned(store)
    pytest.fail("a cleaning has fewer steps than that")


# Names


def test_log_of_the_longest_name_can_be_deleted() -> None:
    topic = "t" * 249
    store = Store(config=TopicConfig())
    store.log(0, topic).create_files(0)
    store.directories.delete(topic, 0)
    assert store.directories.live_directories
    [name] = [it for it in store.fs.listdir(DATA) if it.endswith(names.DELETE_DIRECTORY_SUFFIX)]
    assert len(name) <= 255
    store.log(0, topic)
