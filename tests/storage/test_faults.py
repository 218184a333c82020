"""Random lives of a broker's storage, on a filesystem that forgets, fails and fills up.

After every recovery: each acknowledged record is there, once, in order; whatever else is there is
what was appended at that offset; and a second recovery changes nothing. Logs are deleted and
created again under the same name, with crashes in between: the new one has nothing of the old one.
"""

from __future__ import annotations

import itertools
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, DirectoryFailed, ErrorCode, LogGone
from millstream.records.batch import parse_header
from millstream.storage.flush import GroupFlush
from tests.storage.store import TOPIC, Store, apply_retention, make_batch, read_all, truncate_to

PARTITIONS = 7
partitions = st.integers(0, PARTITIONS - 1)
seeds = st.integers(0, 2**32 - 1)
# How a deletion ends before the next log of the name is created.
FATES = (
    "complete",
    "create first",
    "crash before execution",
    "crash after execution",
    "kill before execution",
    "kill after execution",
)


class Expected:
    """What a partition must hold: values by offset, of which those below `acked` are promised."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.acked = 0
        self.start = 0

    def cut(self, end_offset: int) -> None:
        self.values = {
            offset: value for offset, value in self.values.items() if offset < end_offset
        }
        self.acked = min(self.acked, end_offset)


class StorageLife(RuleBasedStateMachine):
    """Appends, flushes and disasters in any order."""

    @initialize()
    def begin(self) -> None:
        self.store = Store(config=TopicConfig(segment_bytes=700, index_interval_bytes=150))
        self.expected = [Expected() for _ in range(PARTITIONS)]
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        self.counter = itertools.count()
        self.disk_is_full = False
        for partition in range(PARTITIONS):
            self.store.log(partition)

    # Ordinary life

    @rule(partition=partitions, count=st.integers(1, 4), size=st.integers(0, 60))
    def append(self, partition: int, count: int, size: int) -> None:
        values = [b"%d-%s" % (next(self.counter), b"x" * size) for _ in range(count)]
        try:
            appended = self.store.append(*values, partition=partition)
        except ApiError as error:
            self._check_refusal(error)
            return
        expected = self.expected[partition]
        assert appended.first_offset == max(expected.values, default=expected.start - 1) + 1
        expected.values.update(enumerate(values, appended.first_offset))

    @rule(partition=partitions)
    def append_idempotently(self, partition: int) -> None:
        value = b"%d" % next(self.counter)
        sequence = self.sequences[partition]
        batch = make_batch(value, producer_id=partition, producer_epoch=0, base_sequence=sequence)
        log = self.store.log(partition)
        header = parse_header(batch)
        if log.directory.failure is not None:
            return
        assert log.check_producer(header) is None
        try:
            appended = self.store.append_batch(batch, partition=partition)
        except ApiError:
            return
        assert log.check_producer(header) == appended
        self.sequences[partition] += 1
        self.expected[partition].values[appended.first_offset] = value

    @rule(chosen=st.sets(partitions, min_size=1), to_segments=st.booleans())
    def flush(self, chosen: set[int], to_segments: bool) -> None:
        failed = self.store.flush(*chosen, to_segments=to_segments)
        for partition in chosen:
            log = self.store.log(partition)
            if log not in failed and log.directory.failure is None:
                assert log.flushed_offset == log.log_end_offset
                self.expected[partition].acked = log.log_end_offset

    @rule(size=st.integers(0, 60), flush=st.booleans())
    def append_everywhere(self, size: int, flush: bool) -> None:
        """What brings the journal into play."""
        for partition in range(PARTITIONS):
            self.append(partition, 1, size)
        if flush:
            self.flush(set(range(PARTITIONS)), to_segments=False)

    @rule(chosen=st.sets(partitions, min_size=1), busy=partitions)
    def flush_in_the_thread(self, chosen: set[int], busy: int) -> None:
        """The owner goes on while a flush is under way: a log rolls and grows before it ends."""
        logs = {partition: self.store.log(partition) for partition in chosen}
        ends = {partition: log.log_end_offset for partition, log in logs.items()}
        flush = GroupFlush.prepare(logs.values())
        flush.execute()
        self.roll(busy)
        self.append(busy, 1, 10)
        failed = flush.complete(self.store.clock.now_ms())
        for partition, log in logs.items():
            if log not in failed and log.directory.failure is None:
                expected = self.expected[partition]
                expected.acked = max(expected.acked, ends[partition])

    @rule()
    def checkpoint(self) -> None:
        self.store.directories.checkpoint()

    @rule(partition=partitions)
    def roll(self, partition: int) -> None:
        log = self.store.log(partition)
        if log.directory.failure is None and log.active_segment.size:
            try:
                log.roll(self.store.clock.now_ms())
            except ApiError as error:
                self._check_refusal(error)

    @rule(partition=partitions, data=st.data())
    def delete_records(self, partition: int, data: st.DataObject) -> None:
        log, expected = self.store.log(partition), self.expected[partition]
        if log.directory.failure is not None:
            return
        offset = data.draw(
            st.integers(log.log_start_offset, max(expected.acked, log.log_start_offset))
        )
        log.delete_records_before(offset)
        expected.start = log.log_start_offset
        try:
            apply_retention(log, self.store.clock.now_ms())
        except ApiError as error:
            self._check_refusal(error)

    @rule(partition=partitions, data=st.data())
    def truncate(self, partition: int, data: st.DataObject) -> None:
        log, expected = self.store.log(partition), self.expected[partition]
        if log.directory.failure is not None:
            return
        offset = data.draw(st.integers(log.log_start_offset, log.log_end_offset))
        try:
            truncate_to(log, offset)
        except ApiError:
            # Nobody knows how far it came; what was to be cut is no longer promised.
            expected.acked = min(expected.acked, log.recovery_point)
            return
        assert log.log_end_offset <= offset
        expected.cut(log.log_end_offset)
        self._forget_producer(partition)

    # Deleting, and creating again under the same name

    @rule(chosen=st.sets(partitions, min_size=1), fate=st.sampled_from(FATES), seed=seeds)
    def delete(self, chosen: set[int], fate: str, seed: int) -> None:
        if self.disk_is_full or not self.store.directories.live_directories:
            return
        for partition in chosen:
            self.expected[partition] = Expected()
            self.sequences[partition] = 0
            self.store.topic_ids[TOPIC, partition] = uuid4()
        deletions = self.store.directories.prepare_deletions(
            [self.store.directories.logs[TOPIC, partition] for partition in chosen]
        )
        if fate not in ("crash before execution", "kill before execution", "create first"):
            for deletion in deletions:
                deletion.execute()
        if fate == "complete":
            for deletion in deletions:
                deletion.complete()
        if "kill" in fate:
            self.store.fs.heal()
            self.kill()
        elif "crash" in fate:
            self.cut_power(seed)
        self._create_deleted()

    @rule(partition=partitions, fate=st.sampled_from(FATES), seed=seeds, is_early=st.booleans())
    def delete_while_it_is_used(self, partition: int, fate: str, seed: int, is_early: bool) -> None:
        """A flush and a checkpoint in progress end after the log has gone."""
        directories = self.store.directories
        old = self.store.log(partition)
        if self.disk_is_full or not directories.live_directories:
            return
        flush = GroupFlush.prepare(directories.logs.values())
        checkpoints = directories.prepare_checkpoints()
        if is_early:
            flush.execute()
        self.delete({partition}, fate, seed)
        if self.store.directories is not directories:
            return  # a crash has ended them
        self.append(partition, 1, 10)
        if not is_early:
            flush.execute()
        flush.complete(self.store.clock.now_ms())
        for checkpoint in checkpoints:
            checkpoint.execute()
            checkpoint.complete()
        with pytest.raises(LogGone):
            old.read(old.log_start_offset, max_bytes=1, end_offset=1, may_block=True)

    def _create_deleted(self) -> None:
        """A sync that failed takes the directory down: then the broker is started again first."""
        try:
            for partition in range(PARTITIONS):
                self.store.log(partition)
        except (ApiError, DirectoryFailed):
            self.cut_power(None)
            for partition in range(PARTITIONS):
                self.store.log(partition)

    @rule()
    def retire_journal(self) -> None:
        flush = self.store.directories.prepare_journal_retirement()
        if flush is not None:
            flush.execute()
            flush.complete(self.store.clock.now_ms())
            self.store.directories.finish_journal_retirement()

    @rule()
    def sweep(self) -> None:
        self.store.directories.sweep()

    @rule()
    def restart(self) -> None:
        if not self.store.directories.live_directories:
            return
        self.store.directories.close()
        was_clean = bool(self.store.directories.live_directories)
        if was_clean:
            for partition in range(PARTITIONS):
                self._promise_all(partition)
        self.store.fs.crash()
        self.store.directories = self.store._open()
        self._compare(clean=was_clean)

    # Disasters

    @rule(seed=st.none() | seeds)
    def cut_power(self, seed: int | None) -> None:
        self.disk_is_full = False
        self.store.crash(seed)
        self._compare(clean=False)

    @rule()
    def kill(self) -> None:
        self.store.kill()
        self._compare(clean=False)

    @rule(part=st.sampled_from([".log", "journal", "checkpoint", "orders-3", ".index"]))
    def fail_next_sync(self, part: str) -> None:
        self.store.fs.fail_next_sync(part)

    @rule(size=st.integers(0, 500))
    def fill_disk(self, size: int) -> None:
        self.disk_is_full = True
        self.store.fs.fail_writes_after(size)

    @rule()
    def make_room(self) -> None:
        self.disk_is_full = False
        self.store.fs.fail_writes_after(None)

    # What must hold

    def _check_refusal(self, error: ApiError) -> None:
        assert error.code == ErrorCode.KAFKA_STORAGE_ERROR

    def _promise_all(self, partition: int) -> None:
        expected = self.expected[partition]
        expected.acked = max(expected.values, default=expected.start - 1) + 1

    def _forget_producer(self, partition: int) -> None:
        """After lost appends the producer goes on where the log says it is."""
        producers = self.store.log(partition).producers
        if partition in producers and producers[partition].batches:
            self.sequences[partition] = producers[partition].batches[-1].last_sequence + 1
        else:
            self.sequences[partition] = 0

    def _compare(self, *, clean: bool) -> None:
        assert self.store.directories.live_directories
        for partition in range(PARTITIONS):
            log, expected = self.store.log(partition), self.expected[partition]
            assert log.log_end_offset >= expected.acked
            # Deleting records may be forgotten, never be invented.
            assert log.log_start_offset <= expected.start
            # A truncation inside a batch may end the log before its start.
            start = min(expected.start, log.log_end_offset)
            got = {record.offset: record.value for record in read_all(log, start)}
            expected.cut(log.log_end_offset)
            want = {offset: value for offset, value in expected.values.items() if offset >= start}
            assert got == want
            expected.start = log.log_start_offset
            log.delete_records_before(start)
            expected.start = log.log_start_offset
            expected.acked = log.log_end_offset
            self._forget_producer(partition)
        before = self.store.files(".log")
        self.store.kill()
        assert self.store.files(".log") == before
        for partition in range(PARTITIONS):
            self.store.log(partition).delete_records_before(self.expected[partition].start)

    @invariant()
    def offsets_are_in_order(self) -> None:
        if not hasattr(self, "store"):
            return
        for log in self.store.directories.logs.values():
            assert log.log_start_offset <= log.log_end_offset
            assert log.recovery_point <= log.flushed_offset <= log.log_end_offset
            assert log.saved_recovery_point <= log.log_end_offset


StorageLife.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStorageLife = StorageLife.TestCase


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestLongStorageLife(StorageLife.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=400, stateful_step_count=80, deadline=None)
