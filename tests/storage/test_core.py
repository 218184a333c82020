"""The compiled steps of appends and flushes: they do what the general path does, or nothing."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError
from millstream.records.batch import Buffer, parse_header
from millstream.records.checksum import crc32c
from millstream.storage._core import (
    COPIED_BYTES_MAX,
    COPIES_BYTES_MAX,
    JournalCopies,
    LogCore,
    SegmentCore,
    encode_entries,
)
from tests.storage.store import Store, make_batch, read_all, topic_id, truncate_to

# Copies for the journal


def add(copies: JournalCopies, *appended: bytes) -> None:
    for data in appended:
        buffers: list[Buffer] = [data[:1], memoryview(data)[1:]]
        copies.add(buffers, len(data))


def begun() -> JournalCopies:
    copies = JournalCopies()
    assert copies.take(0, 100) is None  # nothing is known of what was written before
    return copies


def test_copies_are_the_bytes_since_the_last_flush() -> None:
    copies = begun()
    add(copies, b"one", b"two")
    assert copies.take(100, 106) == b"onetwo"
    add(copies, b"three")
    assert copies.take(106, 111) == b"three"
    assert copies.take(111, 111) == b""


def test_copies_are_given_only_from_where_they_start() -> None:
    copies = begun()
    add(copies, b"one")
    assert copies.take(90, 103) is None
    add(copies, b"two")
    assert copies.take(103, 106) == b"two"


def test_a_large_append_leaves_none_until_the_next_flush() -> None:
    copies = begun()
    large = b"x" * (COPIED_BYTES_MAX + 1)
    add(copies, b"one", large, b"two")
    end = 106 + len(large)
    assert copies.take(100, end) is None
    add(copies, b"three")
    assert copies.take(end, end + 5) == b"three"


def test_copies_are_bounded() -> None:
    copies = begun()
    count = COPIES_BYTES_MAX // 1000
    add(copies, *[b"x" * 1000] * count)
    assert copies.take(100, 100 + count * 1000) == b"x" * 1000 * count
    start = 100 + count * 1000
    add(copies, *[b"x" * 1000] * (count + 1))
    assert copies.take(start, start + (count + 1) * 1000) is None


def test_copies_begin_again_where_the_segment_was_cut() -> None:
    copies = begun()
    add(copies, b"one", b"two")
    copies.restart(103)
    add(copies, b"new")
    assert copies.take(103, 106) == b"new"


# Small appends


def small(store: Store, batch: bytes, *, epoch: int = 0) -> int:
    return store.log().append_small(batch, epoch, store.clock.now_ms())


def begun_store(**settings: object) -> Store:
    """A store whose log has one batch, as small appends need it."""
    store = Store(config=TopicConfig(**settings))  # type: ignore[arg-type]
    store.append(b"first")
    assert store.log().accepts_small_appends
    return store


def now_batch(store: Store, *values: bytes, **fields: Any) -> bytes:
    return make_batch(*values, timestamp=store.clock.now_ms(), **fields)


@pytest.mark.parametrize("seed", range(5))
def test_small_appends_write_what_general_appends_write(seed: int) -> None:
    random = Random(seed)
    config = TopicConfig(segment_bytes=4000, index_interval_bytes=300, segment_index_bytes=60)
    compiled, general = Store(config=config), Store(config=config)
    taken = 0
    for _ in range(300):
        values = [random.randbytes(random.randrange(80)) for _ in range(random.randint(1, 3))]
        timestamp = compiled.clock.now_ms() - random.randrange(1000)
        batch = make_batch(*values, timestamp=timestamp)
        epoch = random.choice((2, 2, 2, 3))
        end = general.append_general(batch, epoch=epoch).next_offset
        if small(compiled, batch, epoch=epoch) >= 0:
            taken += 1
        else:
            compiled.append_general(batch, epoch=epoch)
        assert compiled.log().log_end_offset == end
    assert taken > 50
    assert compiled.files(".log") == general.files(".log")
    for ours, theirs in zip(compiled.log().segments, general.log().segments, strict=True):
        assert (ours.max_timestamp, ours.max_timestamp_offset) == (
            theirs.max_timestamp,
            theirs.max_timestamp_offset,
        )
    compiled.restart()
    general.restart()
    assert compiled.files("index") == general.files("index")


@pytest.mark.parametrize(
    "settings",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "zstd"},
    ],
)
def test_topics_that_change_batches_refuse_small_appends(settings: dict[str, Any]) -> None:
    store = Store(config=TopicConfig(**settings))
    store.append(b"first")
    assert not store.log().accepts_small_appends


def test_batches_that_are_not_simple_are_left_to_the_general_path() -> None:
    store = begun_store(message_timestamp_after_max_ms=1000, max_message_bytes=200)
    damaged = bytearray(now_batch(store, b"value"))
    damaged[-1] ^= 1
    cases = {
        "damaged": bytes(damaged),
        "short": now_batch(store, b"value")[:-1],
        "too large": now_batch(store, b"x" * 200),
        "transactional": now_batch(store, b"value", transactional=True),
        "in the future": make_batch(b"value", timestamp=store.clock.now_ms() + 2000),
    }
    before = store.files(".log")
    assert [name for name, batch in cases.items() if small(store, batch) >= 0] == []
    assert store.files(".log") == before
    assert small(store, now_batch(store, b"value"), epoch=1) == -1  # the epoch is to be recorded
    assert small(store, now_batch(store, b"value")) == 1


def test_small_appends_of_idempotent_producers_are_counted_and_checked() -> None:
    store = begun_store()
    first, second, fourth = (
        now_batch(store, b"value", producer_id=1, producer_epoch=0, base_sequence=sequence)
        for sequence in (0, 1, 3)
    )
    assert small(store, first) == 1
    assert small(store, second) == 2
    assert small(store, second) == -1  # a duplicate: the general path answers it
    with pytest.raises(ApiError, match="sequence"):
        small(store, fourth)
    assert store.log().check_producer(parse_header(second)) == (2, 3)
    assert store.log().log_end_offset == 3


def test_new_settings_apply_to_the_next_append() -> None:
    store = begun_store()
    store.log().update_config(TopicConfig(message_timestamp_type="LogAppendTime"))
    assert small(store, now_batch(store, b"value")) == -1


def test_small_appends_end_with_a_truncation_and_with_a_roll() -> None:
    store = begun_store()
    store.append(b"second")
    truncate_to(store.log(), 1)
    assert small(store, now_batch(store, b"value")) == -1
    store.append(b"again")
    assert small(store, now_batch(store, b"value")) == 2
    store.log().roll(store.clock.now_ms())
    assert small(store, now_batch(store, b"value")) == -1


def test_small_append_to_a_failed_directory_is_left_to_the_general_path() -> None:
    store = begun_store()
    store.log().directory.fail(OSError("a bad disk"))
    assert small(store, now_batch(store, b"value")) == -1


def test_small_append_to_a_deleted_log_is_left_to_the_general_path() -> None:
    store = begun_store()
    log = store.log()
    log.is_deleted = True  # its files are closed later
    assert log.append_small(now_batch(store, b"value"), 0, store.clock.now_ms()) == -1


def test_small_append_to_a_full_disk_leaves_nothing() -> None:
    store = begun_store()
    before = store.files(".log")
    store.fs.fail_writes_after(20)
    with pytest.raises(ApiError, match="cannot append"):
        small(store, now_batch(store, b"value"))
    store.fs.fail_writes_after(None)
    assert store.files(".log") == before
    assert small(store, now_batch(store, b"value")) == 1
    store.flush()
    store.crash()
    assert [record.value for record in read_all(store.log())] == [b"first", b"value"]


def test_small_append_after_the_file_was_closed_opens_it_again() -> None:
    store = begun_store()
    store.log().active_segment.release()
    assert small(store, now_batch(store, b"value")) == -1
    assert store.append(b"value").first_offset == 1
    assert small(store, now_batch(store, b"value")) == 2


# The journal


def test_entries_have_the_format_of_the_journal() -> None:
    topic = topic_id().bytes
    seed = crc32c(b"generation")
    entries = [((topic, 3), 5, 2**32 - 1, b"batch"), ((topic, 2**31 - 1), 2**40, 0, bytearray(9))]
    expected = b""
    for (uuid, partition), base_offset, position, data in entries:
        head = struct.pack(">B16siqI", 1, uuid, partition, base_offset, position)
        crc = crc32c(data, crc32c(head, seed))
        expected += struct.pack(">II", len(head) + len(data), crc) + head + data
    assert encode_entries(entries, seed) == expected
    assert encode_entries([], seed) == b""


def test_entry_without_a_whole_topic_id_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        encode_entries([((b"short", 3), 5, 0, b"batch")], 0)


def test_positions_are_recalled_in_their_segment_and_generation_only() -> None:
    log, segment, replacement = LogCore(), SegmentCore(), SegmentCore()
    assert log.recall(segment, 0) == -1
    log.remember(segment, 0, 0, log.generation)
    log.remember(segment, 5, 100, log.generation)
    assert (log.recall(segment, 0), log.recall(segment, 5)) == (0, 100)
    assert log.recall(replacement, 5) == log.recall(segment, 6) == -1
    log.remember(segment, 5 + 32, 900, log.generation)  # in the same slot
    assert (log.recall(segment, 5), log.recall(segment, 37)) == (-1, 900)
    log.generation += 1
    log.remember(segment, 6, 200, log.generation - 1)
    assert log.recall(segment, 6) == -1
    log.forget_positions()
    assert log.recall(segment, 0) == log.recall(segment, 37) == -1
