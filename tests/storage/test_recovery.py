"""What a crash can leave of a log, and what recovery makes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millstream.config.topic import TopicConfig
from millstream.records.batch import iterate_headers
from millstream.storage import lookup
from millstream.storage.directories import LogDirectories
from millstream.storage.segment import INDEXED_BYTES_MIN
from tests.storage.store import DATA, TOPIC, Store, make_batch, read_all, topic_id

LOG = f"{DATA}/orders-0/{0:020d}.log"


def overwrite(store: Store, path: str, content: bytes) -> None:
    fd = store.fs.open(path)
    store.fs.truncate(fd, 0)
    store.fs.pwritev(fd, [content], 0)
    store.fs.fdatasync(fd)
    store.fs.close(fd)


def test_clean_stop_is_recognised_and_nothing_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(config=TopicConfig(index_interval_bytes=100))
    for number in range(50):
        store.append(b"%d" % number, epoch=1)
    store.directories.close()
    monkeypatch.setattr("millstream.storage.recovery.verify_crc", None)
    store.reopen()
    log = store.log()
    assert store.directories.clean
    assert (log.log_end_offset, log.recovery_point, log.flushed_offset) == (50, 50, 50)
    assert log.epochs.entries == ((1, 0),)
    assert log.topic_id == topic_id()


def test_crash_is_recognised() -> None:
    store = Store()
    store.append(b"a")
    store.kill()
    assert not store.directories.clean


def test_first_start_is_clean() -> None:
    assert Store().directories.clean


@pytest.mark.parametrize("keep_flushed", [False, True])
def test_torn_tail_is_cut_at_the_last_whole_batch_for_every_cut(keep_flushed: bool) -> None:
    store = Store()
    for value in (b"a", b"b", b"c" * 30):
        store.append(value)
    if keep_flushed:
        store.flush(0, to_segments=True)
        store.directories.checkpoint()
    content = store.files(LOG)[LOG]
    ends = [position + header.size_bytes for position, header in iterate_headers(content)]
    for size in range(ends[1], ends[2]):
        overwrite(store, LOG, content[:size])
        store.kill()
        assert [record.value for record in read_all(store.log())] == [b"a", b"b"]
        assert len(store.files(LOG)[LOG]) == ends[1]


def test_any_flipped_byte_past_the_recovery_point_cuts_the_log_there() -> None:
    store = Store()
    store.append(b"a")
    store.append(b"b")
    content = store.files(LOG)[LOG]
    first_end = next(iterate_headers(content))[1].size_bytes
    uncovered = {first_end + position for position in range(12, 16)}  # the leader epoch has no CRC
    for position in range(first_end, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        overwrite(store, LOG, bytes(damaged))
        store.kill()
        expected = 2 if position in uncovered else 1
        if position in range(first_end, first_end + 8) and store.log().log_end_offset > 1:
            continue  # a base offset, which has no CRC either, may grow without being noticed
        assert store.log().log_end_offset == expected


def test_cut_is_logged_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.append(b"a")
    content = store.files(LOG)[LOG]
    overwrite(store, LOG, content + b"garbage")
    with caplog.at_level(logging.WARNING):
        store.kill()
    assert "orders-0: recovery truncated 7 torn or corrupt bytes" in caplog.text


def test_segments_after_a_cut_go_too() -> None:
    store = Store(config=TopicConfig(segment_bytes=100))
    for number in range(5):
        store.append(b"%d" % number)
    path = f"{DATA}/orders-0/{2:020d}.log"
    overwrite(store, path, store.files(path)[path][:-1])
    store.kill()
    assert [record.value for record in read_all(store.log())] == [b"0", b"1"]
    assert len(store.files(".log")) == 3


def test_hole_between_segments_past_the_recovery_point_cuts_the_log() -> None:
    """A sealed segment lost a whole batch at its end: what follows cannot have been promised."""
    store = Store(config=TopicConfig(segment_bytes=160))
    for number in range(6):
        store.append(b"%d" % number)
    content = store.files(LOG)[LOG]
    first_end = next(iterate_headers(content))[1].size_bytes
    overwrite(store, LOG, content[:first_end])
    store.kill()
    assert [record.value for record in read_all(store.log())] == [b"0"]


def test_indexes_are_rebuilt_as_they_were() -> None:
    store = Store(config=TopicConfig(segment_bytes=2000, index_interval_bytes=150))
    for number in range(100):
        store.append(b"%d" % number, timestamp=1000 + number)
    for segment in store.log().segments:
        segment.save_indexes()
    before = store.files("index")
    for path in list(before):
        overwrite(store, path, b"nonsense" * 7)
    store.kill()
    for segment in store.log().segments:
        segment.seal()
    after = store.files("index")
    assert {path: after[path] for path in before if path.endswith(".index")} == {
        path: content for path, content in before.items() if path.endswith(".index")
    }
    assert [record.offset for record in read_all(store.log(), 57)] == list(range(57, 100))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_index_below_the_recovery_point_is_rebuilt(suffix: str) -> None:
    store = Store(config=TopicConfig(segment_bytes=1000, index_interval_bytes=100))
    for number in range(40):
        store.append(b"%d" % number, timestamp=1000 + number)
    store.directories.close()
    path = f"{DATA}/orders-0/{0:020d}{suffix}"
    before = store.files(path)[path]
    store.fs.unlink(path)
    store.reopen()
    assert store.files(path)[path] == before
    assert [record.offset for record in read_all(store.log(), 5)] == list(range(5, 40))


def test_orphaned_index_is_removed() -> None:
    store = Store()
    store.append(b"a")
    path = f"{DATA}/orders-0/{77:020d}.index"
    store.fs.close(store.fs.open(path, create=True))
    store.kill()
    assert not store.fs.exists(path)


def test_large_segment_is_scanned_only_past_the_recovery_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    for _ in range(INDEXED_BYTES_MIN // 500_000 + 2):
        store.append(b"x" * 500_000)
    store.flush(0)
    store.directories.checkpoint()
    store.append(b"late", timestamp=2_000_000_000_000)
    store.fs.flip(LOG, 1000)  # below the recovery point: not looked at, and not cut
    store.kill()
    log = store.log()
    assert log.log_end_offset == INDEXED_BYTES_MIN // 500_000 + 3
    found = lookup.offset_for_timestamp(log, lookup.MAX_TIMESTAMP)
    assert found is not None
    assert found.timestamp == 2_000_000_000_000


def test_large_segment_with_a_useless_index_is_scanned_whole() -> None:
    store = Store()
    count = INDEXED_BYTES_MIN // 500_000 + 2
    for _ in range(count):
        store.append(b"x" * 500_000)
    store.flush(0)
    store.directories.checkpoint()
    path = f"{DATA}/orders-0/{0:020d}.index"
    overwrite(store, path, store.files(path)[path][:-8] + b"\x00\x00\x00\x09\x7f\x00\x00\x00")
    store.kill()
    assert store.log().log_end_offset == count


def test_epochs_past_the_checkpoint_are_found_in_the_batches() -> None:
    store = Store()
    store.append(b"a", epoch=1)
    store.flush(0)
    store.directories.checkpoint()
    store.append(b"b", epoch=4)
    store.flush(0)
    store.crash()
    assert store.log().epochs.entries == ((1, 0), (4, 1))


def test_lost_epochs_leave_with_the_batches() -> None:
    store = Store()
    store.append(b"a", epoch=1)
    store.flush(0)
    store.append(b"b", epoch=2)
    store.directories.checkpoint()
    store.crash()
    assert store.log().epochs.entries == ((1, 0),)


def test_producers_are_rebuilt_from_the_newest_sound_snapshot() -> None:
    store = Store(config=TopicConfig(segment_bytes=100))
    for sequence in range(6):
        store.append_batch(
            make_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=sequence)
        )
    snapshots = sorted(store.files(".snapshot"))
    assert len(snapshots) == 5
    store.fs.flip(snapshots[-1], 12)
    store.kill()
    assert store.log().producers[5].batches[-1].last_sequence == 5
    assert snapshots[-1] not in store.files(".snapshot")


def test_snapshots_past_the_end_of_the_log_are_removed() -> None:
    store = Store()
    store.append_batch(make_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0))
    path = f"{DATA}/orders-0/{99:020d}.snapshot"
    store.fs.close(store.fs.open(path, create=True))
    store.kill()
    assert path not in store.files(".snapshot")
    assert len(store.log().producers) == 1


def test_expired_producers_are_not_loaded() -> None:
    store = Store()
    batch = make_batch(
        b"x",
        timestamp=store.clock.now_ms(),
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
    )
    store.append_batch(batch)
    store.clock.advance(86_400_000)
    store.restart()
    assert len(store.log().producers) == 0


def test_damaged_recovery_points_mean_that_everything_is_scanned() -> None:
    store = Store()
    store.append(b"a")
    store.flush(0)
    store.directories.checkpoint()
    overwrite(store, f"{DATA}/recovery-point-offset-checkpoint", b"nonsense")
    store.kill()
    assert [record.value for record in read_all(store.log())] == [b"a"]


def test_sync_that_failed_is_not_believed_at_the_next_start() -> None:
    """The page cache still shows the bytes, but the disk does not have them."""
    store = Store()
    store.append(b"a")
    store.flush(0)
    store.append(b"b")
    store.fs.fail_next_sync(".log")
    assert store.flush(0, to_segments=True)
    store.kill()
    assert [record.value for record in read_all(store.log())] == [b"a"]


def test_real_filesystem_reopens_after_a_torn_write_at_every_byte(tmp_path: Path) -> None:
    directories = LogDirectories.open([tmp_path])
    log = directories.create(TOPIC, 0, topic_id(), TopicConfig())
    batches = [make_batch(value) for value in (b"a", b"b", b"c")]
    for batch in batches:
        headers = [header for _, header in iterate_headers(batch)]
        log.append(batch, headers, leader_epoch=0, now_ms=0)
    directories.abandon()
    path = tmp_path / "orders-0" / f"{0:020d}.log"
    content = path.read_bytes()
    whole = len(batches[0]) + len(batches[1])
    for size in range(whole, len(content)):
        path.write_bytes(content[:size])
        directories = LogDirectories.open([tmp_path], recovery_threads=2)
        log = directories.logs[TOPIC, 0]
        assert [record.value for record in read_all(log)] == [b"a", b"b"]
        directories.abandon()
        assert path.stat().st_size == whole
