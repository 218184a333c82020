"""Checkpoints in three steps: what they save, in which order, and how they overtake each other."""

from __future__ import annotations

import pytest

from millstream.config.topic import TopicConfig
from millstream.storage.checkpointing import LOGS_PER_TURN, save_recovery_point
from millstream.storage.checkpoints import read_offsets
from millstream.storage.steps import let_others_work, run_here
from tests.storage.store import DATA, TOPIC, Store, truncate_to

RECOVERY_POINTS = f"{DATA}/recovery-point-offset-checkpoint"
LOG_STARTS = f"{DATA}/log-start-offset-checkpoint"


def saved_recovery_point(store: Store) -> int:
    return int(store.files(RECOVERY_POINTS)[RECOVERY_POINTS].split()[-1])


def flushed_store() -> Store:
    store = Store(config=TopicConfig(segment_bytes=200, index_interval_bytes=50))
    for number in range(6):
        store.append(b"%d" % number, epoch=1)
    store.flush(0, to_segments=True)
    return store


def test_nothing_is_written_before_execute_nor_told_before_complete() -> None:
    store = flushed_store()
    store.fs.operations.clear()
    (checkpoint,) = store.directories.prepare_checkpoints()
    assert store.fs.operations == []
    checkpoint.execute()
    assert saved_recovery_point(store) == 6
    assert store.log().saved_recovery_point == 0
    checkpoint.complete()
    assert store.log().saved_recovery_point == 6


def test_epochs_and_indexes_are_durable_before_the_recovery_point() -> None:
    store = flushed_store()
    store.fs.operations.clear()
    store.directories.checkpoint()
    operations = [(operation.name, operation.path) for operation in store.fs.operations]
    point = operations.index(("rename", RECOVERY_POINTS))
    epochs = f"{DATA}/orders-0/leader-epoch-checkpoint"
    assert operations.index(("fdatasync", epochs + ".tmp")) < operations.index(("rename", epochs))
    assert operations.index(("rename", epochs)) < point
    index = f"{DATA}/orders-0/{0:020d}.index"
    assert operations.index(("fdatasync", index)) < point


def test_checkpoint_covers_what_was_flushed_when_it_was_prepared() -> None:
    store = flushed_store()
    (checkpoint,) = store.directories.prepare_checkpoints()
    store.append(b"later", epoch=2)
    store.flush(0, to_segments=True)
    checkpoint.execute()
    checkpoint.complete()
    assert saved_recovery_point(store) == 6
    assert store.log().epochs.dirty  # epoch 2 is not in the file
    store.directories.checkpoint()
    assert saved_recovery_point(store) == 7
    assert not store.log().epochs.dirty


def test_older_checkpoint_does_nothing_after_a_newer() -> None:
    """Compaction saved a recovery point while a checkpoint was waiting for its thread."""
    store = flushed_store()
    (older,) = store.directories.prepare_checkpoints()
    store.append(b"later")
    store.flush(0, to_segments=True)
    run_here(save_recovery_point(store.log()))
    older.execute()
    older.complete()
    assert saved_recovery_point(store) == 7
    assert store.log().saved_recovery_point == 7


def test_checkpoint_prepared_before_a_truncation_does_not_outlive_it() -> None:
    store = flushed_store()
    (older,) = store.directories.prepare_checkpoints()
    truncate_to(store.log(), 2)
    older.execute()
    older.complete()
    assert saved_recovery_point(store) == 2
    assert store.log().saved_recovery_point <= 2
    store.crash()
    assert store.log().log_end_offset == 2


def test_checkpoint_survives_a_log_that_is_deleted_meanwhile() -> None:
    store = flushed_store()
    store.append(b"x", partition=1)
    (checkpoint,) = store.directories.prepare_checkpoints()
    store.directories.delete(TOPIC, 0)
    store.directories.sweep()
    checkpoint.execute()
    checkpoint.complete()
    assert store.directories.live_directories


def test_failed_sync_takes_the_directory_down() -> None:
    store = flushed_store()
    store.fs.fail_next_sync("checkpoint")
    store.directories.checkpoint()
    assert not store.directories.live_directories


def test_logs_are_taken_a_few_per_turn() -> None:
    store = Store()
    for partition in range(2 * LOGS_PER_TURN):
        store.append(b"x", partition=partition)
    steps = store.directories.checkpoint_steps()
    assert [next(steps) for _ in range(2)] == [let_others_work] * 2
    store.directories.delete(TOPIC, 0)  # taken by then
    run_here(steps)
    saved = read_offsets(store.fs, RECOVERY_POINTS)
    assert set(saved) == {(TOPIC, partition) for partition in range(1, 2 * LOGS_PER_TURN)}


def test_checkpoint_that_is_overtaken_is_made_again() -> None:
    """A recovery point was saved in between; what else has changed must be saved too."""
    store = flushed_store()
    store.log().delete_records_before(3)
    steps = store.directories.checkpoint_steps()
    execute = next(steps)
    run_here(save_recovery_point(store.log()))
    execute()
    again = steps.send(None)
    assert LOG_STARTS not in store.files(LOG_STARTS)
    again()
    with pytest.raises(StopIteration):
        steps.send(None)
    assert read_offsets(store.fs, LOG_STARTS) == {(TOPIC, 0): 3}
