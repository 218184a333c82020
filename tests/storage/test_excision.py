"""Excision: named records leave every file of a log, nothing else changes, and no crash brings
them back or takes more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.excised import OffsetRanges
from millstream.config.topic import VERSION_OF_KEY, TopicConfig
from millstream.records.compression import Compression
from millstream.records.record import ControlType, Record, encode_batch, encode_end_transaction
from millstream.storage.excision import RETRY_MS, Excisor, LogExcision
from millstream.storage.steps import run_here
from millstream.storage.version_replay import build_versions
from tests.storage.cleaning import (
    CompactedStore,
    MortalFileSystem,
    PowerCut,
    compacted,
    headers_of,
)
from tests.storage.store import TOPIC, truncate_to
from tests.storage.versioned import VersionedStore

SECRET = b"alice@example.org"


def small(**changes: object) -> TopicConfig:
    return compacted(cleanup_policy=frozenset({"delete"}), **changes)


class ExcisedStore(CompactedStore):
    """A log of small segments, and an excisor."""

    wanted_epoch = 5

    def __init__(
        self, *, config: TopicConfig | None = None, fs: MortalFileSystem | None = None
    ) -> None:
        super().__init__(config=config or small(), fs=fs or MortalFileSystem())
        self.excisor = Excisor(now_ms=self.clock.now_ms)

    def want(self, offsets: Iterable[int]) -> None:
        if not offsets:
            return
        items = (f"0:{OffsetRanges.of(offsets)}@{self.wanted_epoch}",)
        self.config = dataclasses.replace(self.config, millstream_excised_offsets=items)
        self.log().update_config(self.config)

    def excise(self, *offsets: int) -> LogExcision:
        self.want(offsets)
        return self.run()

    def run(self) -> LogExcision:
        done = self.excisor.excise(self.log())
        assert done is not None
        return done

    def is_pending(self) -> bool:
        return bool(self.excisor.pending([self.log()]))

    def start_again(self) -> None:
        self.kill()
        self.excisor = Excisor(now_ms=self.clock.now_ms)

    def restore(self, backup: dict[str, bytes]) -> None:
        """Stop, put these files in the place of those that are there, and start."""
        self.directories.close()
        for path in self.files():
            self.fs.unlink(path)
        for path, content in backup.items():
            self.fs.make_directory(path.rpartition("/")[0])
            fd = self.fs.open(path, create=True)
            self.fs.pwritev(fd, [content], 0)
            self.fs.fdatasync(fd)
            self.fs.close(fd)
            self.fs.sync_directory(path.rpartition("/")[0])
        self.reopen()
        self.excisor = Excisor(now_ms=self.clock.now_ms)

    def retire_journal(self) -> None:
        flush = self.directories.prepare_journal_retirement()
        if flush is not None:
            flush.execute()
            flush.complete(self.clock.now_ms())
            self.directories.finish_journal_retirement()

    def files_with(self, needle: bytes) -> list[str]:
        """The files that have these bytes."""
        return [path for path, content in self.files().items() if needle in content]


class VersionedExcisedStore(ExcisedStore, VersionedStore):
    """The same with versions of keys."""


def filled(count: int = 30, every: int = 7, *, fs: MortalFileSystem | None = None) -> ExcisedStore:
    """Each `every`-th record is of the subject."""
    store = ExcisedStore(fs=fs)
    for number in range(count):
        value = b"%s %d" % (SECRET, number) if number % every == 0 else b"other %d" % number
        store.write((b"key%d" % number, value))
    store.flush()
    return store


def subject(store: ExcisedStore) -> list[int]:
    return [it.offset for it in store.written.values() if SECRET in (it.value or b"")]


def others(store: ExcisedStore) -> list[Record]:
    return [it for it in store.written.values() if SECRET not in (it.value or b"")]


def test_records_leave_every_file_and_the_others_stay_where_they_are() -> None:
    store = filled()
    end, wanted = store.log().log_end_offset, subject(store)
    done = store.excise(*wanted)
    assert done.removed == wanted
    assert done.is_complete
    assert store.read() == others(store)
    assert store.log().log_end_offset == end
    store.retire_journal()
    assert store.log().directory.journal.is_erased
    assert store.files_with(SECRET) == []
    assert not store.is_pending()


def test_report_has_the_hash_of_each_segment_before_and_after() -> None:
    store = filled()
    done = store.excise(*subject(store))
    assert len(done.segments) > 2
    for segment in done.segments:
        assert segment.bytes_after < segment.bytes_before
        assert segment.sha256_after != segment.sha256_before
    assert store.run().segments == []  # a second look finds nothing


def test_offsets_that_do_not_exist_change_nothing() -> None:
    store = filled(5)
    store.seal()
    before = [segment.size for segment in store.log().segments]
    done = store.excise(0, 3_000)
    assert done.removed == [0]
    assert not done.is_complete  # a follower may yet get there
    assert [segment.size for segment in store.log().segments][1:] == before[1:]
    assert not store.is_pending()
    store.write((b"a", b"1"))
    assert store.is_pending()


def test_records_before_the_start_of_the_log_leave_its_files_too() -> None:
    store = filled()
    store.log().delete_records_before(2)
    assert 0 in store.excise(*subject(store)).removed
    store.retire_journal()
    assert store.files_with(SECRET) == []


@pytest.mark.parametrize("compression", Compression)
def test_one_record_of_a_compressed_batch_goes(compression: Compression) -> None:
    store = ExcisedStore()
    store.write((b"a", b"1"), (b"b", SECRET), (b"c", b"3"), compression=compression)
    store.write((b"d", SECRET), compression=compression)
    store.excise(1, 3)
    assert store.read() == [store.written[0], store.written[2]]
    counts = [(it.compression, it.record_count) for it in headers_of(store.log())]
    assert counts == [(compression, 2), (Compression.NONE, 0)]


def test_sequences_of_producers_survive_a_restart() -> None:
    store = ExcisedStore()
    for number in range(3):
        store.write((b"a", SECRET), producer_id=9, base_sequence=number)
    store.flush()
    store.excise(0, 1, 2)
    store.start_again()
    assert store.read() == []
    assert store.log().producers[9].batches[-1].last_sequence == 2


def test_transactions_end_as_before() -> None:
    store = ExcisedStore()
    store.write((b"a", SECRET), producer_id=1, base_sequence=0, is_transactional=True)
    store.write((b"b", b"1"), producer_id=2, base_sequence=0, is_transactional=True)
    for producer_id, end in ((1, ControlType.ABORT), (2, ControlType.COMMIT)):
        marker = encode_end_transaction(
            end, offset=0, timestamp=1, producer_id=producer_id, producer_epoch=0,
            coordinator_epoch=0,
        )  # fmt: skip
        store.append_general(marker)
    aborted = [it for each in store.log().segments for it in each.read_aborted()]
    done = store.excise(0, 2)  # 2 is a marker: it stays
    assert done.removed == [0]
    assert [it for each in store.log().segments for it in each.read_aborted()] == aborted
    assert [it.is_control for it in headers_of(store.log())] == [False, False, True, True]
    store.start_again()
    assert store.log().producers.first_open_offset is None


def test_record_of_an_open_transaction_goes_and_the_transaction_stays_open() -> None:
    store = ExcisedStore()
    store.write((b"a", SECRET), producer_id=1, base_sequence=0, is_transactional=True)
    store.flush()
    store.excise(0)
    store.start_again()
    assert store.log().producers.first_open_offset == 0


def test_versions_of_keys_are_those_of_the_records_that_are_left() -> None:
    store = VersionedExcisedStore(config=small(millstream_conditional_append=VERSION_OF_KEY))
    store.offer((b"alice", 1))
    store.offer((b"bob", 1))
    assert versions_of(store) == [1, 1]
    store.excise(0)
    assert versions_of(store) == [0, 1]
    store.start_again()
    run_here(build_versions(store.log()))
    assert versions_of(store) == [0, 1]


def versions_of(store: ExcisedStore) -> list[int]:
    versions = store.log().versions
    assert versions is not None
    return [versions.get(key)[0] for key in (b"alice", b"bob")]


def test_log_that_was_truncated_is_looked_at_again() -> None:
    store = filled(10)
    store.excise(*subject(store))
    assert not store.is_pending()
    truncate_to(store.log(), 6)
    assert store.is_pending()


def test_log_from_a_backup_is_excised_after_the_start() -> None:
    store = filled()
    wanted = subject(store)
    store.seal()
    backup = store.files()
    store.excise(*wanted)
    store.restore(backup)
    assert store.files_with(SECRET) != []
    assert store.is_pending()
    assert store.run().removed == wanted
    assert store.read() == others(store)


def test_record_that_a_later_leader_wrote_at_the_offset_stays() -> None:
    """After a backup that ended before it, or an unclean election."""
    store = ExcisedStore()
    store.append(b"0", epoch=5)
    store.append(b"1", epoch=5)
    store.append(b"2", epoch=6)
    store.flush()
    assert store.excise(1, 2).removed == [1]
    assert [it.value for it in store.read()] == [b"0", b"2"]
    store.start_again()
    assert store.run().removed == []


def test_log_that_is_being_truncated_is_left_alone() -> None:
    store = filled()
    store.want(subject(store))
    before = store.files(".log")
    store.log().is_truncating = True
    assert store.excisor.excise(store.log()) is None
    assert store.files(".log") == before
    store.log().is_truncating = False
    assert store.run().removed == subject(store)


def test_topic_made_again_under_the_same_name_keeps_its_records() -> None:
    store = filled()
    store.excise(*subject(store))
    store.directories.delete(TOPIC, 0)
    store.config = small()
    store.written.clear()
    store.write((b"a", SECRET))
    assert not store.is_pending()
    assert store.read() == [store.written[0]]


def test_damaged_batch_is_reported_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    store = filled()
    store.seal()
    segment = store.log().segments[0]
    store.fs.flip(segment.handle.path, 70)
    store.want(subject(store))
    assert store.excisor.excise(store.log()) is None
    assert "cannot be excised now" in caplog.text
    assert not store.is_pending()
    store.clock.advance(RETRY_MS)
    assert store.is_pending()


def test_full_disk_leaves_the_log_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    store = filled()
    store.seal()
    before = store.read()
    store.fs.fail_writes_after(100)
    store.want(subject(store))
    assert store.excisor.excise(store.log()) is None
    assert store.read() == before
    store.fs.fail_writes_after(None)
    assert store.run().is_complete
    assert store.read() == others(store)


def test_no_power_cut_takes_more_or_brings_them_back() -> None:
    operations = 0
    while True:
        operations += 1
        fs = MortalFileSystem()
        store = filled(14, 3, fs=fs)
        wanted = subject(store)
        store.want(wanted)
        fs.operations_left = operations
        try:
            store.run()
            store.retire_journal()
        except PowerCut:
            store.crash(operations)
            store.excisor = Excisor(now_ms=store.clock.now_ms)
            left = [it.offset for it in store.read()]
            assert set(left) >= {it.offset for it in others(store)}
            store.want(wanted)
            store.run()
            store.retire_journal()
        else:
            break
        assert store.read() == others(store)
        assert store.files_with(SECRET) == []
    assert operations > 60


@given(
    batches=st.lists(st.integers(1, 4), min_size=1, max_size=15),
    chosen=st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_any_excisions_leave_exactly_the_other_records(
    batches: Sequence[int], chosen: Sequence[set[int]], seed: int
) -> None:
    random = Random(seed)
    store = ExcisedStore()
    gone: set[int] = set()
    for offsets in chosen:
        for size in batches:
            writes = [(b"k%d" % random.randrange(5), b"v%d" % i) for i in range(size)]
            store.write(*writes, compression=random.choice(list(Compression)))
        store.flush()
        gone |= offsets
        store.excise(*gone)
        kept = [it for offset, it in store.written.items() if offset not in gone]
        assert store.read() == kept
        if random.random() < 0.5:
            store.start_again()
            assert store.read() == kept


class Life:
    """A log to which anything happens; and which records it must have."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = ExcisedStore()
        self.epoch = 0
        self.epochs: dict[int, int] = {}  # in which each record was written
        self.wanted: set[tuple[int, int]] = set()  # offsets, up to these epochs
        self.secrets: set[bytes] = set()  # contents that were excised
        self.backup: tuple[dict[str, bytes], dict[int, Record], dict[int, int]] | None = None
        self._count = 0

    def write(self) -> None:
        random, store = self.random, self.store
        batch = []
        for _ in range(random.randrange(1, 4)):
            self._count += 1
            # Long enough that compressed records don't have the same bytes by chance.
            batch.append((b"k%d" % random.randrange(5), b"<content %d>" % self._count))
        known = set(store.written)
        records = [Record(i, i, key, value) for i, (key, value) in enumerate(batch)]
        encoded = encode_batch(records, compression=random.choice(list(Compression)))
        first = store.append_batch(encoded, epoch=self.epoch).first_offset
        for record in records:
            offset = first + record.offset
            store.written[offset] = dataclasses.replace(record, offset=offset)
            self.epochs[offset] = self.epoch
        assert known.isdisjoint(range(first, first + len(records)))
        store.flush()

    def excise(self) -> None:
        chosen = [it for it in self.store.written if self.random.random() < 0.3]
        self.wanted |= {(it, self.epoch) for it in chosen}
        self._order()

    def excise_with_a_power_cut(self) -> None:
        self.excise()
        self.store.fs.operations_left = self.random.randrange(1, 80)  # type: ignore[attr-defined]
        try:
            self.store.run()
            self.store.retire_journal()
            self.store.fs.operations_left = None  # type: ignore[attr-defined]
        except PowerCut:
            self.store.crash(self.random.randrange(1000))
            self.store.excisor = Excisor(now_ms=self.store.clock.now_ms)
            self._order()

    def copy_away(self) -> None:
        self.store.seal()
        self.backup = self.store.files(), dict(self.store.written), dict(self.epochs)

    def restore(self) -> None:
        """An older copy: the records since then are lost, and another leader takes over."""
        if self.backup is not None:
            files, self.store.written, self.epochs = (
                self.backup[0], dict(self.backup[1]), dict(self.backup[2]),
            )  # fmt: skip
            self.store.restore(files)
            self.epoch += 1
            self._order()

    def truncate(self) -> None:
        """As a follower that had more than the new leader."""
        store = self.store
        if not store.log().log_end_offset:
            return
        offset = self.random.randint(store.log().log_start_offset, store.log().log_end_offset)
        headers = headers_of(store.log())
        offset = next((it.base_offset for it in headers if it.last_offset >= offset), offset)
        truncate_to(store.log(), offset)
        store.flush()
        for known in (store.written, self.epochs):
            for it in [it for it in known if it >= offset]:
                del known[it]
        self.epoch += 1

    def start_again(self) -> None:
        self.store.start_again()

    def make_again(self) -> None:
        self.store.directories.delete(TOPIC, 0)
        self.store.config = small()
        self.store.written.clear()
        self.epochs.clear()
        self.wanted.clear()
        self.backup = None
        self.write()

    def _order(self) -> None:
        by_epoch: dict[int, list[int]] = {}
        for offset, epoch in self.wanted:
            by_epoch.setdefault(epoch, []).append(offset)
        items = tuple(f"0:{OffsetRanges.of(it)}@{epoch}" for epoch, it in by_epoch.items())
        store = self.store
        store.config = dataclasses.replace(store.config, millstream_excised_offsets=items)
        store.log().update_config(store.config)

    def check(self) -> None:
        store = self.store
        if store.config.millstream_excised_offsets and store.is_pending():
            store.run()
            store.retire_journal()
        for offset, epoch in self.wanted:
            if offset in store.written and self.epochs[offset] <= epoch:
                self.secrets.add(store.written.pop(offset).value or b"")
        assert store.read() == [store.written[it] for it in sorted(store.written)]
        for content in store.files(".log").values():  # compressed ones are found by `read` alone
            assert not any(it in content for it in self.secrets)


ACTIONS = (
    Life.write, Life.write, Life.write, Life.excise, Life.excise_with_a_power_cut, Life.copy_away,
    Life.restore, Life.truncate, Life.start_again, Life.make_again,
)  # fmt: skip


def live(seed: int, steps: int) -> None:
    life = Life(seed)
    life.write()
    for _ in range(steps):
        life.random.choice(ACTIONS)(life)
        life.check()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_a_log_they_do_not_come_back(seed: int) -> None:
    live(seed, 25)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_in_many_lives_they_do_not_come_back(first: int) -> None:
    for seed in range(first, first + 100):
        live(1_000 + seed, 40)
