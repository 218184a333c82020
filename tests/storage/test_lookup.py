"""ListOffsets' questions, asked of a log."""

from __future__ import annotations

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch
from millstream.records.batch import HEADER_SIZE_BYTES
from millstream.storage import lookup
from millstream.storage.lookup import TimestampOffset, offset_for_timestamp
from tests.storage.store import Store


def make_store() -> Store:
    """Offsets 0..59, three to a batch; a record's timestamp is 1000 + its offset, in epoch 2."""
    store = Store(config=TopicConfig(segment_bytes=500, index_interval_bytes=100))
    for number in range(20):
        store.append(b"a", b"b", b"c", timestamp=1000 + 3 * number, epoch=2)
    assert len(store.log().segments) > 2
    return store


@pytest.mark.parametrize("restarted", [False, True])
def test_timestamp_finds_the_first_record_as_new(restarted: bool) -> None:
    store = make_store()
    if restarted:
        store.restart()
    log = store.log()
    assert offset_for_timestamp(log, 0) == TimestampOffset(1000, 0, 2)
    for timestamp in range(1000, 1060):
        assert offset_for_timestamp(log, timestamp) == TimestampOffset(
            timestamp, timestamp - 1000, 2
        )
    assert offset_for_timestamp(log, 1060) is None


def test_timestamp_search_begins_at_the_start_of_the_log() -> None:
    log = make_store().log()
    log.delete_records_before(10)
    assert offset_for_timestamp(log, 1000) == TimestampOffset(1010, 10, 2)


def test_timestamps_out_of_order_are_found_in_offset_order() -> None:
    store = Store()
    for timestamp in (5000, 1000, 9000, 2000):
        store.append(b"x", timestamp=timestamp)
    assert offset_for_timestamp(store.log(), 3000) == TimestampOffset(5000, 0, 0)
    assert offset_for_timestamp(store.log(), 5001) == TimestampOffset(9000, 2, 0)


def test_special_timestamps_are_questions() -> None:
    log = make_store().log()
    log.delete_records_before(7)
    assert offset_for_timestamp(log, lookup.LATEST) == TimestampOffset(-1, 60, 2)
    assert offset_for_timestamp(log, lookup.EARLIEST) == TimestampOffset(-1, 7, 2)
    assert offset_for_timestamp(log, lookup.EARLIEST_LOCAL) == TimestampOffset(-1, 7, 2)
    assert offset_for_timestamp(log, lookup.MAX_TIMESTAMP) == TimestampOffset(1059, 59, 2)
    assert offset_for_timestamp(log, lookup.LATEST_TIERED) == TimestampOffset(-1, -1, -1)
    assert offset_for_timestamp(log, lookup.EARLIEST_PENDING_UPLOAD) == TimestampOffset(-1, -1, -1)
    with pytest.raises(ApiError, match="-7"):
        offset_for_timestamp(log, -7)


def test_largest_timestamp_is_that_of_a_record_not_of_the_last() -> None:
    store = Store(config=TopicConfig(segment_bytes=100, segment_ms=10**9))
    for timestamp in (1000, 9000, 2000):
        store.append(b"x", timestamp=timestamp)
    assert offset_for_timestamp(store.log(), lookup.MAX_TIMESTAMP) == TimestampOffset(9000, 1, 0)


def test_empty_log_has_no_largest_timestamp() -> None:
    assert offset_for_timestamp(Store().log(), lookup.MAX_TIMESTAMP) is None
    assert offset_for_timestamp(Store().log(), 0) is None


SIZE_FIELD = 8  # where in a batch its length stands


@pytest.mark.parametrize("number", [0, 1, 4, 19])
def test_damage_to_records_ends_with_their_batch(number: int) -> None:
    store = make_store()
    damage(store, number, HEADER_SIZE_BYTES + 1)
    log = store.log()
    for offset in range(3 * number, 3 * number + 3):
        with pytest.raises(CorruptBatch):
            log.read(offset, max_bytes=1, end_offset=60, may_block=True)
        assert lookup.end_of_damage(log, offset) == 3 * number + 3


@pytest.mark.parametrize("number", [0, 1, 4, 19])
def test_damage_to_a_length_ends_where_the_log_can_be_read_again(number: int) -> None:
    store = make_store()
    damage(store, number, SIZE_FIELD)
    log = store.log()
    offset, end = 3 * number, lookup.end_of_damage(log, 3 * number)
    assert end > offset
    assert end == 60 or log.read(end, max_bytes=1, end_offset=60, may_block=True)
    for hidden in range(offset, end):
        with pytest.raises(CorruptBatch):
            log.read(hidden, max_bytes=1, end_offset=60, may_block=True)


def damage(store: Store, number: int, at: int) -> None:
    """Flip a bit in one of the batches, behind the log's back."""
    log = store.log()
    segments, index = log.find_segment(3 * number)
    found = segments[index].locate(3 * number, may_block=True)
    assert found is not None
    store.restart()
    store.fs.flip(segments[index].handle.path, found[0] + at, mask=0x10)
