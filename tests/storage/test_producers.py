"""Idempotence: duplicates, gaps, epochs, wrap-around, expiry, snapshots."""

from __future__ import annotations

import pytest

from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.batch import BatchHeader, parse_header
from millstream.storage.producers import ProducerStates
from tests.storage.store import make_batch

SEQUENCE_MAX = 2**31 - 1


def header(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    timestamp: int = 1000,
    transactional: bool = False,
) -> BatchHeader:
    return parse_header(
        make_batch(
            *[b"x"] * count,
            timestamp=timestamp,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def states(*appended: BatchHeader) -> ProducerStates:
    found = ProducerStates()
    offset = 100
    for batch in appended:
        assert found.check(batch) is None
        found.record(batch, offset)
        offset += batch.record_count
    return found


def refused(producers: ProducerStates, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        producers.check(batch)
    return raised.value.code


def test_duplicate_is_answered_with_the_first_offsets() -> None:
    producers = states(header(0, 3), header(3, 2))
    duplicate = producers.check(header(0, 3))
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.last_offset) == (100, 102)


def test_duplicate_is_recognised_among_the_last_five_only() -> None:
    producers = states(*(header(sequence) for sequence in range(7)))
    assert producers.check(header(2)) is not None
    assert refused(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gap_in_the_sequence_is_refused() -> None:
    assert refused(states(header(0)), header(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_overlapping_batch_is_not_taken_for_a_duplicate() -> None:
    producers = states(header(0, 3))
    assert refused(producers, header(1, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerStates().check(header(17)) is None


def test_older_epoch_is_refused() -> None:
    producers = states(header(0, epoch=3))
    assert refused(producers, header(1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_newer_epoch_begins_at_zero() -> None:
    producers = states(header(0, epoch=3), header(1, epoch=3))
    assert refused(producers, header(5, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=4)) is None


def test_sequence_wraps_after_the_largest() -> None:
    producers = states(header(SEQUENCE_MAX - 1, 2))
    assert producers.check(header(0)) is None
    producers = states(header(SEQUENCE_MAX, 3))  # SEQUENCE_MAX, 0, 1
    assert producers.check(header(2)) is None
    assert producers.check(header(SEQUENCE_MAX, 3)) is not None


def test_silent_producer_expires_and_a_busy_one_does_not() -> None:
    producers = states(header(0, timestamp=1000))
    producers.expire(now_ms=1999, expiration_ms=1000)
    assert 7 in list(producers)
    producers.expire(now_ms=2000, expiration_ms=1000)
    assert len(producers) == 0


def test_open_transaction_keeps_its_producer_and_the_first_unstable_offset() -> None:
    producers = states(header(0, transactional=True), header(1, transactional=True))
    assert producers.first_open_offset == 100
    producers.expire(now_ms=10**12, expiration_ms=1)
    assert len(producers) == 1
    marker = header(-1, epoch=0)
    completed = producers.record_marker(marker, 102, coordinator_epoch=5, aborted=True)
    assert completed is not None
    assert (completed.first_offset, completed.last_offset, completed.aborted) == (100, 102, True)
    assert producers.first_open_offset is None
    assert producers.record_marker(marker, 103, coordinator_epoch=5, aborted=True) is None


def test_snapshot_round_trips_what_kafka_keeps() -> None:
    producers = states(header(0, 3), header(3, 2, transactional=True))
    loaded = ProducerStates()
    loaded.load_snapshot(producers.encode_snapshot())
    entry = loaded[7]
    assert list(entry.batches) == [producers[7].batches[-1]]
    assert entry.epoch == 0
    assert loaded.first_open_offset == 103
    assert loaded.check(header(5, transactional=True)) is None
    assert loaded.encode_snapshot() == producers.encode_snapshot()


def test_snapshot_has_kafkas_layout() -> None:
    content = states(header(4, 2)).encode_snapshot()
    assert content[:2] == b"\x00\x01"
    assert content[6:10] == b"\x00\x00\x00\x01"
    expected = (7).to_bytes(8) + (0).to_bytes(2) + (5).to_bytes(4) + (101).to_bytes(8)
    expected += (1).to_bytes(4) + (1001).to_bytes(8) + b"\xff" * 4 + b"\xff" * 8
    assert content[10:] == expected


def test_damaged_snapshot_is_refused() -> None:
    content = bytearray(states(header(0)).encode_snapshot())
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(StorageError):
            ProducerStates().load_snapshot(bytes(damaged))
    for size in range(len(content)):
        with pytest.raises(StorageError):
            ProducerStates().load_snapshot(bytes(content[:size]))


def marker_refused(producers: ProducerStates, epoch: int, version: int, coordinator: int) -> str:
    with pytest.raises(ApiError) as raised:
        producers.check_marker(7, epoch, coordinator_epoch=coordinator, transaction_version=version)
    return raised.value.code.name


def test_batch_that_would_open_a_transaction_needs_leave() -> None:
    producers = states()
    with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
        producers.check(header(0, transactional=True), may_open=False)
    producers.record(header(0, transactional=True), 100)
    assert producers.is_in_transaction(7, 0)
    assert not producers.is_in_transaction(7, 1)
    assert producers.check(header(1, transactional=True), may_open=False) is None
    with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
        producers.check(header(0, epoch=1, transactional=True), may_open=False)


def test_duplicate_is_recognised_after_its_transaction_has_ended() -> None:
    producers = states(header(0, transactional=True))
    producers.record_marker(header(-1), 101, coordinator_epoch=0, aborted=False)
    duplicate = producers.check(header(0, transactional=True), may_open=False)
    assert duplicate is not None
    assert duplicate.first_offset == 100


def test_nothing_is_written_outside_of_an_open_transaction() -> None:
    producers = states(header(0, transactional=True))
    assert refused(producers, header(1)) == ErrorCode.INVALID_TXN_STATE


def test_marker_of_version_2_raises_the_epoch_and_begins_the_sequence_anew() -> None:
    producers = states(header(0, 3, transactional=True))
    producers.check_marker(7, 1, coordinator_epoch=0, transaction_version=2)
    producers.record_marker(header(-1, epoch=1), 103, coordinator_epoch=0, aborted=False)
    assert refused(producers, header(3, transactional=True)) == ErrorCode.INVALID_PRODUCER_EPOCH
    again = header(3, epoch=1, transactional=True)
    assert refused(producers, again) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=1, transactional=True)) is None


def test_marker_of_version_2_ends_no_transaction_of_its_own_epoch() -> None:
    producers = states(header(0, epoch=5, transactional=True))
    for epoch in (4, 5):
        assert marker_refused(producers, epoch, 2, 0) == "INVALID_PRODUCER_EPOCH"
    producers.record_marker(header(-1, epoch=6), 101, coordinator_epoch=0, aborted=False)
    # Written again by a coordinator that does not know that it is there.
    producers.check_marker(7, 6, coordinator_epoch=0, transaction_version=2)


def test_marker_of_version_1_has_the_epoch_of_the_records() -> None:
    producers = states(header(0, epoch=5, transactional=True))
    producers.check_marker(7, 5, coordinator_epoch=0, transaction_version=1)
    assert marker_refused(producers, 4, 1, 0) == "INVALID_PRODUCER_EPOCH"


def test_marker_of_an_older_coordinator_is_refused() -> None:
    producers = states(header(0, transactional=True))
    producers.record_marker(header(-1), 101, coordinator_epoch=5, aborted=False)
    producers.check_marker(7, 0, coordinator_epoch=5, transaction_version=0)
    assert marker_refused(producers, 0, 0, 4) == "TRANSACTION_COORDINATOR_FENCED"


def test_oldest_open_transaction_is_known_after_a_snapshot_too() -> None:
    producers = ProducerStates()
    for producer_id, offset in ((1, 10), (2, 11), (3, 12)):  # in this order they are remembered
        producers.record(header(0)._replace(producer_id=producer_id), offset)
    for producer_id, offset in ((3, 20), (2, 25), (1, 30)):
        batch = header(1, transactional=True)._replace(producer_id=producer_id)
        producers.record(batch, offset)
    loaded = ProducerStates()
    loaded.load_snapshot(producers.encode_snapshot())
    for producer_id, then in ((3, 25), (2, 30), (1, None)):
        end = header(-1)._replace(producer_id=producer_id)
        loaded.record_marker(end, 40, coordinator_epoch=0, aborted=False)
        assert loaded.first_open_offset == then
