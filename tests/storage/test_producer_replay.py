"""What a log knows of producers and aborted transactions comes out of the log again."""

from __future__ import annotations

import pytest

from millstream.records.record import ControlType, encode_end_transaction
from millstream.storage import lookup
from millstream.storage.filesystem import write_file
from millstream.storage.transactions import AbortedTransaction
from tests.storage.cleaning import (
    DAY_MS,
    CompactedStore,
    MortalFileSystem,
    PowerCut,
    compacted,
)
from tests.storage.store import Store, apply_retention, make_batch, truncate_to

FIRST, SECOND = 3, 4


def write(store: Store, producer_id: int, sequence: int = 0) -> int:
    """A transactional batch; its offset."""
    batch = make_batch(
        b"x" * 100,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    return store.append_batch(batch).first_offset


def end(store: Store, producer_id: int, kind: ControlType = ControlType.ABORT) -> int:
    marker = encode_end_transaction(
        kind,
        offset=0,
        timestamp=store.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=9,
    )
    return store.append_batch(marker).first_offset


def aborted_in(store: Store) -> list[AbortedTransaction]:
    log = store.log()
    return lookup.aborted_transactions(log, log.log_start_offset, log.log_end_offset)


@pytest.fixture
def store() -> Store:
    """Two transactions that overlap, both aborted, in two segments; a third one is open."""
    store = Store()
    write(store, FIRST)  # 0
    write(store, SECOND)  # 1
    end(store, FIRST)  # 2
    store.log().roll(store.clock.now_ms())
    end(store, SECOND)  # 3
    write(store, FIRST, sequence=1)  # 4
    store.flush(to_segments=True)
    return store


EXPECTED = [AbortedTransaction(FIRST, 0, 2, 1), AbortedTransaction(SECOND, 1, 3, 4)]


def test_entries_have_the_last_stable_offset_as_of_their_markers(store: Store) -> None:
    assert aborted_in(store) == EXPECTED
    assert store.log().producers.first_open_offset == 4


@pytest.mark.parametrize("stop", [Store.restart, Store.kill, Store.crash])
def test_open_and_aborted_transactions_survive_every_stop(store: Store, stop: object) -> None:
    for _ in range(2):
        stop(store)  # type: ignore[operator]
        assert aborted_in(store) == EXPECTED
        assert store.log().producers.first_open_offset == 4
        assert store.log().producers[SECOND].coordinator_epoch == 9
    end(store, FIRST)
    assert len(aborted_in(store)) == 3


def test_segment_that_is_appended_to_after_a_restart_tells_of_all_aborts(store: Store) -> None:
    store.restart()
    assert aborted_in(store) == EXPECTED  # from now on the file of the last segment is known
    end(store, FIRST)
    store.log().roll(store.clock.now_ms())
    assert aborted_in(store) == [*EXPECTED, AbortedTransaction(FIRST, 4, 5, 6)]


def test_index_that_a_crash_lost_is_made_anew_although_a_newer_snapshot_survived(
    store: Store,
) -> None:
    (lost,) = store.files("00000000000000000000.txnindex")
    assert store.files("00000000000000000003.snapshot")
    store.fs.unlink(lost)
    store.kill()
    assert aborted_in(store) == EXPECTED


def test_index_that_was_made_anew_survives_the_next_crash(store: Store) -> None:
    (lost,) = store.files("00000000000000000000.txnindex")
    store.fs.unlink(lost)
    store.fs.sync_directory(store.log().path)
    store.kill()
    store.directories.checkpoint()  # recovery will not look at that segment again
    store.crash()
    assert aborted_in(store) == EXPECTED


def test_damaged_index_is_made_anew(store: Store) -> None:
    store.directories.close()
    (damaged,) = store.files("00000000000000000003.txnindex")
    write_file(store.fs, damaged, b"torn", sync=True)
    store.reopen()
    assert aborted_in(store) == EXPECTED
    store.restart()
    assert aborted_in(store) == EXPECTED


def test_truncation_opens_a_transaction_again_whose_marker_is_cut_off(store: Store) -> None:
    truncate_to(store.log(), 3)
    assert aborted_in(store) == EXPECTED[:1]
    assert store.log().producers.first_open_offset == 1
    truncate_to(store.log(), 2)
    assert aborted_in(store) == []
    assert store.log().producers.first_open_offset == 0
    assert end(store, SECOND) == 2
    store.restart()
    assert aborted_in(store) == [AbortedTransaction(SECOND, 1, 2, 0)]


def test_index_goes_with_its_segment(store: Store) -> None:
    log = store.log()
    log.delete_records_before(3)
    apply_retention(log, store.clock.now_ms())
    assert aborted_in(store) == EXPECTED[1:]
    store.directories.sweep()
    assert not store.files("00000000000000000000.txnindex")


def test_snapshot_from_before_the_first_segment_opens_no_transaction() -> None:
    """Its end was deleted: it would hang for ever."""
    store = Store()
    write(store, FIRST)
    store.restart()  # saves a snapshot with the transaction open
    (stale,) = store.files("00000000000000000001.snapshot").items()
    end(store, FIRST)
    store.append(b"x")
    log = store.log()
    log.roll(store.clock.now_ms())
    store.flush(to_segments=True)
    log.delete_records_before(3)
    apply_retention(log, store.clock.now_ms())
    store.directories.checkpoint()
    assert not store.files("00000000000000000001.snapshot")
    for path in store.files(".snapshot"):
        store.fs.unlink(path)  # as a crash may
    write_file(store.fs, stale[0], stale[1], sync=True)
    store.kill()
    assert store.log().producers.first_open_offset is None
    assert not store.files("00000000000000000001.snapshot")


def test_transaction_in_the_middle_of_which_the_log_starts_stays_open() -> None:
    store = Store()
    batch = make_batch(
        *[b"x"] * 3, producer_id=FIRST, producer_epoch=0, base_sequence=0, transactional=True
    )
    store.append_batch(batch)
    store.flush()
    store.log().delete_records_before(1)
    store.directories.checkpoint()
    store.kill()
    assert store.log().log_start_offset == 1
    assert store.log().producers.first_open_offset == 0
    end(store, FIRST)
    store.kill()
    assert aborted_in(store) == [AbortedTransaction(FIRST, 0, 3, 4)]


# Compaction takes records and markers away


def store_with_stale_snapshot() -> CompactedStore:
    """A transaction that ended in a sealed segment, after a clean stop that found it open.

    Of all records of the segment that was sealed last, its own is superseded, and the journal is in
    play: the recovery point that is saved is where the active segment begins.
    """
    config = compacted(segment_bytes=700, delete_retention_ms=1000)
    store = CompactedStore(config=config, fs=MortalFileSystem())
    for number in range(6):
        store.write((b"kept%d" % number, b"x"))
    store.write((b"key", b"1"), producer_id=FIRST, base_sequence=0, is_transactional=True)
    store.restart()
    assert store.log().snapshots == [7]
    end(store, FIRST, ControlType.COMMIT)
    store.seal()
    for number in range(6):
        store.write((b"more%d" % number, b"x"))
    store.write((b"key", b"2"))
    store.seal()
    store.flush(0, to_segments=True)
    store.write((b"last", b"x"))
    for partition in range(1, 9):
        store.append(b"x", partition=partition)
    store.flush(*range(9))
    store.directories.checkpoint()
    assert store.log().saved_recovery_point == store.log().active_segment.base_offset
    return store


def clean_until_the_marker_is_empty(store: CompactedStore) -> None:
    for _ in range(4):
        store.clock.advance(2 * DAY_MS)
        store.log().producers.expire(store.clock.now_ms(), DAY_MS)
        store.first_dirty_offset = None
        store.clean()


@pytest.mark.parametrize("stop", [Store.restart, Store.kill, Store.crash])
def test_transaction_whose_end_was_compacted_away_stays_ended(stop: object) -> None:
    store = store_with_stale_snapshot()
    clean_until_the_marker_is_empty(store)
    assert len(store.log().segments) == 3  # nothing was merged
    assert store.log().snapshots == [store.log().active_segment.base_offset]
    for _ in range(2):
        stop(store)  # type: ignore[operator]
        assert store.log().producers.first_open_offset is None


def test_snapshot_inside_a_sealed_segment_opens_no_transaction() -> None:
    """Kafka leaves it there until its next start."""
    store = store_with_stale_snapshot()
    (stale,) = store.files("00000000000000000007.snapshot").items()
    clean_until_the_marker_is_empty(store)
    write_file(store.fs, *stale, sync=True)
    store.kill()
    assert store.log().producers.first_open_offset is None
    assert not store.files("00000000000000000007.snapshot")


@pytest.mark.slow
def test_crash_at_every_operation_of_the_cleanings_opens_no_transaction() -> None:
    operations = 0
    while True:
        operations += 1
        store = store_with_stale_snapshot()
        fs = store.fs
        assert isinstance(fs, MortalFileSystem)
        fs.operations_left = operations
        try:
            clean_until_the_marker_is_empty(store)
        except PowerCut:
            store.crash(operations)
            assert store.log().producers.first_open_offset is None
        else:
            break
    assert operations > 100
