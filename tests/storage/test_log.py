"""One log: appending, reading, rolling, and what it refuses."""

from __future__ import annotations

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode, NotCached
from millstream.records.batch import iterate_headers, parse_header
from millstream.records.record import decode_batch
from millstream.storage.log import Appended
from tests.storage.store import DATA, Store, make_batch, read_all, truncate_to

END = 2**62


def test_append_gives_offsets_and_stamps_the_epoch() -> None:
    store = Store()
    assert store.append(b"a", b"b", epoch=4) == Appended(0, 2)
    assert store.append(b"c", epoch=4) == Appended(2, 3)
    data = store.log().read(0, max_bytes=10_000, end_offset=END)
    headers = [header for _, header in iterate_headers(data)]
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 4), (2, 4)]
    assert [record.value for record in read_all(store.log())] == [b"a", b"b", b"c"]


def test_append_of_several_batches_is_one_write() -> None:
    store = Store()
    store.log().create_files(0)
    batches = make_batch(b"a", b"b") + make_batch(b"c") + make_batch(b"d")
    store.fs.operations.clear()
    assert store.append_batch(batches) == Appended(0, 4)
    assert [operation.name for operation in store.fs.operations] == ["write"]
    assert [record.offset for record in read_all(store.log())] == [0, 1, 2, 3]


def test_append_takes_more_batches_than_a_kernel_takes_buffers() -> None:
    store = Store()
    assert store.append_batch(make_batch(b"x") * 1500) == Appended(0, 1500)
    assert len(read_all(store.log())) == 1500


def test_append_does_not_touch_the_callers_bytes() -> None:
    store = Store()
    store.append(b"first")
    batch = bytearray(make_batch(b"second"))
    before = bytes(batch)
    store.append_batch(memoryview(batch))  # type: ignore[arg-type]
    assert batch == before
    batch[:] = bytes(len(batch))  # the caller may reuse its buffer at once
    store.flush(0)
    store.crash()
    assert [record.value for record in read_all(store.log())] == [b"first", b"second"]


def test_append_larger_than_a_segment_is_refused() -> None:
    store = Store(config=TopicConfig(segment_bytes=200))
    with pytest.raises(ApiError) as raised:
        store.append(b"x" * 300)
    assert raised.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_read_returns_the_whole_batch_for_an_offset_inside_it() -> None:
    store = Store()
    store.append(b"a", b"b", b"c")
    data = store.log().read(1, max_bytes=10_000, end_offset=END)
    assert parse_header(data).base_offset == 0


def test_read_returns_one_batch_even_if_it_is_larger_than_asked() -> None:
    store = Store()
    for value in (b"a" * 100, b"b" * 100):
        store.append(value)
    data = store.log().read(0, max_bytes=1, end_offset=END)
    assert [header.base_offset for _, header in iterate_headers(data)] == [0]
    assert len(data) == parse_header(data).size_bytes


def test_read_never_cuts_a_batch() -> None:
    store = Store(config=TopicConfig(index_interval_bytes=200))
    for number in range(60):
        store.append(b"%d" % number * 7)
    log = store.log()
    size = parse_header(log.read(0, max_bytes=1, end_offset=END)).size_bytes
    for max_bytes in (size - 1, size, size + 1, 5 * size - 1, 5 * size, 17 * size + 3):
        for offset in range(0, 60, 7):
            data = log.read(offset, max_bytes=max_bytes, end_offset=END)
            headers = [header for _, header in iterate_headers(data)]
            assert sum(header.size_bytes for header in headers) == len(data)
            assert headers[0].base_offset == offset
            assert len(data) <= max(max_bytes, headers[0].size_bytes)
            following = log.read(headers[-1].next_offset, max_bytes=size, end_offset=END)
            assert not following or len(data) + len(following) > max_bytes or len(headers) == 1


def test_read_stops_before_the_end_offset() -> None:
    store = Store()
    for number in range(10):
        store.append(b"%d" % number)
    log = store.log()
    data = log.read(2, max_bytes=100_000, end_offset=5)
    assert [header.base_offset for _, header in iterate_headers(data)] == [2, 3, 4]
    assert log.read(5, max_bytes=100_000, end_offset=5) == b""


def test_read_at_the_end_is_empty_and_beyond_it_is_refused() -> None:
    store = Store()
    store.append(b"a")
    log = store.log()
    assert log.read(1, max_bytes=100, end_offset=END) == b""
    for offset in (2, -1):
        with pytest.raises(ApiError) as raised:
            log.read(offset, max_bytes=100, end_offset=END)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_goes_on_in_the_next_segment() -> None:
    store = Store(config=TopicConfig(segment_bytes=300))
    for number in range(20):
        store.append(b"%d" % number * 20)
    assert len(store.log().segments) > 5
    for max_bytes in (1, 150, 100_000):
        assert [record.offset for record in read_all(store.log(), max_bytes=max_bytes)] == list(
            range(20)
        )


def test_sequential_reads_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(50):
        store.append(b"%d" % number)
    log = store.log()
    position, searches = 0, []
    real = type(log.active_segment).locate
    monkeypatch.setattr(
        type(log.active_segment),
        "locate",
        lambda self, offset, **options: searches.append(offset) or real(self, offset, **options),
    )
    while position < log.log_end_offset:
        data = log.read(position, max_bytes=300, end_offset=END)
        *_, (_, last) = iterate_headers(data)
        position = last.next_offset
    assert searches == []


def test_cold_read_is_refused_unless_it_may_block() -> None:
    store = Store()
    store.append(b"a")
    store.fs.evict(".log")
    log = store.log()
    with pytest.raises(NotCached):
        log.read(0, max_bytes=100, end_offset=END)
    assert decode_batch(log.read(0, max_bytes=100, end_offset=END, may_block=True))
    assert log.read(0, max_bytes=100, end_offset=END)


def test_flipped_bit_in_a_closed_log_is_named_and_not_served() -> None:
    store = Store(config=TopicConfig(segment_bytes=400, index_interval_bytes=100))
    for number in range(12):
        store.append(b"%d" % number * 30)
    store.restart()
    path = f"{DATA}/orders-0/{0:020d}.log"
    sizes = parse_header(store.files(path)[path]).size_bytes
    store.fs.flip(path, sizes + 80)
    log = store.log()
    data = log.read(0, max_bytes=100_000, end_offset=END)
    assert [header.base_offset for _, header in iterate_headers(data)] == [0]  # what is sound
    with pytest.raises(CorruptBatch, match=rf"{path} is corrupt at byte {sizes}.*base offset 1"):
        log.read(1, max_bytes=100_000, end_offset=END)
    assert log.read(6, max_bytes=1000, end_offset=END)


def test_what_was_verified_once_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(5):
        store.append(b"%d" % number)
    store.restart()
    log = store.log()
    checks = []
    monkeypatch.setattr(
        "millstream.storage.segment.verify_crc", lambda *arguments: checks.append(arguments)
    )
    log.read(0, max_bytes=10_000, end_offset=END)
    assert len(checks) == 5
    log.read(0, max_bytes=10_000, end_offset=END)
    assert len(checks) == 5


def test_full_disk_refuses_the_append_and_the_log_goes_on_afterwards() -> None:
    store = Store()
    store.append(b"before")
    for room in (0, 1, 40, 60):
        store.fs.fail_writes_after(room)
        with pytest.raises(ApiError, match="No space left") as raised:
            store.append(b"refused")
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    store.fs.heal()
    assert store.append(b"after") == Appended(1, 2)
    assert [record.value for record in read_all(store.log())] == [b"before", b"after"]
    store.kill()
    assert [record.value for record in read_all(store.log())] == [b"before", b"after"]


def test_duplicate_is_answered_with_its_first_offsets_also_after_a_restart() -> None:
    store = Store()
    store.append(b"other")
    batch = make_batch(b"a", b"b", producer_id=9, producer_epoch=0, base_sequence=0)
    header = parse_header(batch)
    assert store.log().check_producer(header) is None
    store.append_batch(batch)
    assert store.log().check_producer(header) == Appended(1, 3)
    store.restart()
    assert store.log().check_producer(header) == Appended(1, 3)
    store.kill()
    assert store.log().check_producer(header) == Appended(1, 3)


def test_batch_without_producer_is_never_a_duplicate() -> None:
    store = Store()
    assert store.log().check_producer(parse_header(make_batch(b"a"))) is None


def test_roll_by_size() -> None:
    store = Store(config=TopicConfig(segment_bytes=250))
    for _ in range(3):
        store.append(b"x" * 40)
    assert [segment.base_offset for segment in store.log().segments] == [0, 2]


def test_roll_by_time_of_the_records() -> None:
    store = Store(config=TopicConfig(segment_ms=1000))
    store.append(b"a", timestamp=5000)
    store.append(b"b", timestamp=6000)
    assert len(store.log().segments) == 1
    store.append(b"c", timestamp=6001)
    assert [segment.base_offset for segment in store.log().segments] == [0, 2]


def test_roll_by_time_of_the_clock_if_records_have_none() -> None:
    store = Store(config=TopicConfig(segment_ms=1000))
    store.append(b"a", timestamp=-1)
    store.clock.advance(1001)
    store.append(b"b", timestamp=-1)
    assert len(store.log().segments) == 2


def test_roll_by_time_is_jittered() -> None:
    config = TopicConfig(segment_ms=1000, segment_jitter_ms=900)
    jitters = {Store(config=config).log().active_segment.roll_jitter_ms for _ in range(30)}
    assert len(jitters) > 5
    assert all(0 <= jitter < 900 for jitter in jitters)


def test_roll_when_an_index_is_full() -> None:
    store = Store(config=TopicConfig(index_interval_bytes=1, segment_index_bytes=60))
    for number in range(20):
        store.append(b"x", timestamp=1000 + number)
    log = store.log()
    assert len(log.segments) > 2
    sizes = {path: len(content) for path, content in store.files("index").items()}
    assert sizes
    assert all(size <= 60 for size in sizes.values())


def test_roll_before_offsets_outgrow_an_index_entry() -> None:
    store = Store()
    store.append(b"a")
    log = store.log()
    log.log_end_offset = 2**31 - 1
    store.append(b"still fits")
    assert len(log.segments) == 1
    store.append(b"does not")
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_epochs_of_the_log_are_known() -> None:
    store = Store()
    store.append(b"a", b"b", epoch=1)
    store.append(b"c", epoch=3)
    log = store.log()
    assert log.latest_epoch == 3
    assert log.end_offset_for_epoch(1) == (1, 2)
    assert log.end_offset_for_epoch(3) == (3, 3)


def test_much_that_is_to_be_verified_is_left_to_a_thread() -> None:
    store = Store()
    for _ in range(3):
        store.append(b"x" * 40_000)
    store.restart()
    log = store.log()
    with pytest.raises(NotCached, match="to be verified first"):
        log.read(0, max_bytes=200_000, end_offset=END)
    assert log.read(0, max_bytes=200_000, end_offset=END, may_block=True)
    assert log.read(0, max_bytes=200_000, end_offset=END)


def test_what_this_process_appended_is_not_verified_after_a_restart_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    store.append(b"before")
    store.restart()
    store.append(b"after")
    monkeypatch.setattr("millstream.storage.segment.verify_crc", None)
    assert store.log().read(1, max_bytes=1000, end_offset=END)


def test_full_disk_during_a_truncation_leaves_nothing_that_no_flush_would_cover() -> None:
    store = Store()
    for partition in range(7):
        store.append(b"x", partition=partition)
    store.flush(*range(7))
    assert store.files("journal-0"), "the journal has to hear of the truncation"
    log = store.log()
    store.append(b"y")
    store.fs.fail_writes_after(0)
    with pytest.raises(ApiError, match="journal"):
        truncate_to(log, 0)
    assert store.flush() == []
    assert log.flushed_offset == log.log_end_offset == 2
    store.kill()
    assert [record.value for record in read_all(store.log())] == [b"x", b"y"]
