"""What replaying the journal does, and what it must leave alone."""

from __future__ import annotations

from millstream.config.topic import TopicConfig
from millstream.storage import flush
from millstream.storage.filesystem import read_file
from millstream.storage.replay import replay_journal
from tests.storage.store import DATA, Store, apply_retention, read_all, truncate_to

MANY = range(flush.FEW_FILES_MAX + 2)


def journaled_store(config: TopicConfig | None = None) -> Store:
    """Appends to many partitions, durable through the journal alone."""
    store = Store(config=config)
    for partition in MANY:
        store.append(b"first", partition=partition)
    store.flush(*MANY)
    assert store.log(0).flushed_offset == 1
    assert store.log(0).recovery_point == 0
    return store


def values(store: Store, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in read_all(store.log(partition))]


def test_replay_restores_bytes_that_only_the_journal_has() -> None:
    store = journaled_store()
    store.fs.crash()
    assert read_file(store.fs, f"{DATA}/orders-0/{0:020d}.log") == b""
    assert replay_journal(store.fs, DATA, {}) > 0
    store.crash()
    for partition in MANY:
        assert values(store, partition) == [b"first"]


def test_replay_twice_changes_nothing() -> None:
    store = journaled_store()
    store.fs.crash()
    replay_journal(store.fs, DATA, {})
    before = store.files(".log")
    assert replay_journal(store.fs, DATA, {}) == 0
    assert store.files(".log") == before


def test_replay_creates_a_segment_whose_name_was_lost() -> None:
    store = journaled_store()
    for partition in MANY:
        store.log(partition).roll(0)
        store.append(b"second", partition=partition)
    store.flush(*MANY)
    store.crash()
    assert values(store) == [b"first", b"second"]
    assert [segment.base_offset for segment in store.log(0).segments] == [0, 1]


def test_replay_ignores_a_deleted_topic() -> None:
    store = journaled_store()
    store.directories.delete("orders", 0)
    store.crash()
    assert ("orders", 0) not in store.directories.logs
    assert ("orders", 1) in store.directories.logs


def test_replay_ignores_a_topic_made_anew_under_the_same_name() -> None:
    store = journaled_store()
    path = f"{DATA}/orders-0/partition.metadata"
    fd = store.fs.open(path)
    store.fs.pwritev(fd, [b"version: 0\ntopic_id: CosfLhERQiKDM0REVVVmZg"], 0)
    store.fs.fdatasync(fd)
    store.crash()
    assert values(store) == []
    assert values(store, 1) == [b"first"]


def test_replay_ignores_what_lies_below_the_recovery_point() -> None:
    store = journaled_store()
    store.fs.crash()
    replay_journal(store.fs, DATA, {("orders", 0): 1})
    assert read_file(store.fs, f"{DATA}/orders-0/{0:020d}.log") == b""
    assert read_file(store.fs, f"{DATA}/orders-1/{0:020d}.log") != b""


def test_replay_does_not_bring_back_what_was_truncated() -> None:
    store = journaled_store()
    store.append(b"second", partition=0)
    store.flush(*MANY)
    truncate_to(store.log(0), 0)
    store.append(b"other", partition=0)
    store.flush(0)
    store.crash()
    assert values(store) == [b"other"]


def test_replay_does_not_bring_back_what_retention_deleted() -> None:
    store = journaled_store()
    for partition in MANY:
        store.log(partition).roll(0)
        store.append(b"second", partition=partition)
    store.flush(*MANY)
    log = store.log(0)
    log.delete_records_before(1)
    apply_retention(log, 0)
    store.directories.checkpoint()
    store.crash()
    assert values(store) == [b"second"]
    assert store.log(0).log_start_offset == 1


def test_journal_left_by_a_crash_is_ignored_after_kafka_stopped_cleanly() -> None:
    """Another broker recovered the directory and stopped; its word counts."""
    store = journaled_store()
    store.fs.crash()
    fd = store.fs.open(f"{DATA}/.kafka_cleanshutdown", create=True)
    store.fs.close(fd)
    store.reopen()
    assert values(store) == []


def test_replay_does_not_believe_memory_after_a_sync_that_failed() -> None:
    """The first start's sync fails: the page cache has the bytes, the disk does not."""
    store = journaled_store()
    store.fs.fail_next_sync(".log")
    store.kill()
    store.crash()
    for partition in MANY:
        assert values(store, partition) == [b"first"]
