"""Random lives of partitions under transactions, on a filesystem that forgets.

Producers write in transactions, a coordinator that never forgets decides how they end and writes
markers, again after every crash until they are durable. Logs roll, are compacted, shortened and
recovered. To readers of committed records, whenever they look:

    nothing of a transaction is seen before it is decided, nothing aborted ever
    all that is committed below the last stable offset is seen, once and in order; where the log
        was compacted, at least the last of each key
    what was seen once is seen after any crash, and the last stable offset is not behind it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.broker.replicas.flushing import Flusher
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER, PendingAppend
from millstream.config.topic import TopicConfig
from millstream.records.batch import iterate_headers
from millstream.records.record import ControlType, Record, decode_batch, encode_batch
from millstream.storage import lookup
from millstream.storage.cleaner import Cleaner, CleanerSettings
from millstream.storage.flush import GroupFlush
from millstream.storage.log import Log
from millstream.storage.producer_replay import rebuild_producers
from millstream.storage.retention import apply_all
from millstream.storage.steps import run_here
from millstream.storage.transactions import AbortedTransaction
from tests.storage.store import TOPIC, Store

PARTITIONS = 3
PRODUCERS = 4
KEYS = 5
COORDINATOR_EPOCH = 3
partitions = st.integers(0, PARTITIONS - 1)
producers = st.integers(0, PRODUCERS - 1)
seeds = st.integers(0, 2**32 - 1)
CONFIG = TopicConfig(
    segment_bytes=400,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact", "delete"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1,
)


class NoFlusher:
    """The test flushes when it pleases."""

    def request(self, partition: Partition) -> None:
        pass


@dataclass(eq=False)
class Transaction:
    producer: int
    epoch: int
    touched: set[int] = field(default_factory=set)
    values: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (partition, offset)
    committed: bool | None = None  # None until it is decided
    markers: dict[int, PendingAppend] = field(default_factory=dict)

    @property
    def unended(self) -> set[int]:
        """The partitions that have no durable marker."""
        return {it for it in self.touched if it not in self.markers or not self.markers[it].is_done}


class TransactionLife(RuleBasedStateMachine):
    """See the module."""

    transaction_version = 2

    @initialize()
    def begin(self) -> None:
        self.store = Store(config=CONFIG)
        self.counter = itertools.count()
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.sequences: dict[tuple[int, int], int] = {}  # (producer, partition)
        self.current: dict[int, Transaction] = {}
        self.plain: dict[tuple[int, int], bytes] = {}
        self.past: list[Transaction] = []
        self.seen: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.seen_up_to = [0] * PARTITIONS
        self.partitions: list[Partition] = []
        self.compacted: set[int] = set()
        self._lead()

    def _lead(self) -> None:
        flusher = cast(Flusher, NoFlusher())
        self.partitions = [
            Partition(
                TOPIC,
                index,
                self.store.log(index),
                leader_epoch=0,
                flusher=flusher,
                clock=self.store.clock,
            )
            for index in range(PARTITIONS)
        ]

    # Producers

    @rule(producer=producers, index=partitions, size=st.integers(0, 80), durable=st.booleans())
    def append(self, producer: int, index: int, size: int, durable: bool) -> None:
        """In the producer's transaction, which begins with it if need be."""
        transaction = self.current.get(producer)
        if transaction is not None and transaction.committed is not None:
            return  # the coordinator has not told all partitions of its end yet
        if transaction is None:
            transaction = Transaction(producer, self.epochs[producer])
            self.current[producer] = transaction
        partition = self.partitions[index]
        sequence = self.sequences.get((producer, index), 0)
        value = self._new_value(size)
        batch = self._batch(value, producer, transaction.epoch, sequence)
        is_open = partition.is_in_transaction(producer, transaction.epoch)
        assert is_open == (index in transaction.touched)
        transaction.touched.add(index)
        pending = partition.append(
            batch, acks=ACKS_ALL if durable else ACKS_LEADER, verified=not is_open
        )
        self.sequences[producer, index] = sequence + 1
        transaction.values[index, pending.first_offset] = value

    @rule(index=partitions)
    def append_outside(self, index: int) -> None:
        value = self._new_value(0)
        record = Record(0, self.store.clock.now_ms(), key_of(value), value)
        pending = self.partitions[index].append(encode_batch([record]), acks=ACKS_ALL)
        self.plain[index, pending.first_offset] = value

    def _new_value(self, size: int) -> bytes:
        number = next(self.counter)
        return b"%d:%d:%s" % (number % KEYS, number, b"x" * size)

    def _batch(self, value: bytes, producer: int, epoch: int, sequence: int) -> bytes:
        return encode_batch(
            [Record(0, self.store.clock.now_ms(), key_of(value), value)],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    # The coordinator

    @rule(producer=producers, committed=st.booleans(), reached=st.sets(partitions))
    def end(self, producer: int, committed: bool, reached: set[int]) -> None:
        """Decide, and tell some of the partitions; the others are told later."""
        transaction = self.current.get(producer)
        if transaction is None:
            return
        if transaction.committed is None:
            transaction.committed = committed
        self._write_markers(transaction, reached)

    @rule(producer=producers, chosen=st.sets(partitions, min_size=1), committed=st.booleans())
    def transact(self, producer: int, chosen: set[int], committed: bool) -> None:
        """A whole transaction, at once."""
        for index in sorted(chosen):
            self.append(producer, index, 40, durable=True)
        self.end(producer, committed, chosen)
        self.flush(chosen, to_segments=False, busy=None)

    @rule()
    def write_markers(self) -> None:
        for transaction in list(self.current.values()):
            if transaction.committed is not None:
                self._write_markers(transaction, set(range(PARTITIONS)))

    def _write_markers(self, transaction: Transaction, reached: set[int]) -> None:
        assert transaction.committed is not None
        for index in sorted(reached & transaction.unended):
            if index not in transaction.markers:
                transaction.markers[index] = self.partitions[index].append_marker(
                    producer_id=transaction.producer,
                    producer_epoch=self._marker_epoch(transaction),
                    coordinator_epoch=COORDINATOR_EPOCH,
                    committed=transaction.committed,
                    transaction_version=self.transaction_version,
                )
        self._complete(transaction)

    def _marker_epoch(self, transaction: Transaction) -> int:
        return transaction.epoch + (1 if self.transaction_version >= 2 else 0)

    def _complete(self, transaction: Transaction) -> None:
        """The next transaction may begin once all markers are durable."""
        if transaction.unended or self.current.get(transaction.producer) is not transaction:
            return
        del self.current[transaction.producer]
        self.past.append(transaction)
        if self.transaction_version >= 2:
            self.epochs[transaction.producer] = transaction.epoch + 1
            for index in range(PARTITIONS):
                self.sequences.pop((transaction.producer, index), None)

    # The disk

    @rule(
        chosen=st.sets(partitions, min_size=1),
        to_segments=st.booleans(),
        busy=st.none() | producers,
    )
    def flush(self, chosen: set[int], to_segments: bool, busy: int | None) -> None:
        """As in the flush thread: a transaction may be ended while it is under way."""
        logs = [self.partitions[index].log for index in sorted(chosen)]
        flush = GroupFlush.prepare(logs, to_segments=to_segments)
        flush.execute()
        if busy is not None:
            self.end(busy, committed=True, reached=chosen)
        flush.complete(self.store.clock.now_ms())
        for index in sorted(chosen):
            self.partitions[index].flushed()
            self.read(index)
        for transaction in list(self.current.values()):
            if transaction.committed is not None:
                self._complete(transaction)

    @rule(index=partitions)
    def roll(self, index: int) -> None:
        log = self.store.log(index)
        if log.active_segment.size:
            log.roll(self.store.clock.now_ms())

    @rule()
    def checkpoint(self) -> None:
        self.store.directories.checkpoint()

    @rule(index=partitions)
    def clean(self, index: int) -> None:
        partition = self.partitions[index]
        self.compacted.add(index)
        self.store.clock.advance(10)
        cleaner = Cleaner(CleanerSettings(io_buffer_bytes=300))
        cleaner.clean_filthiest(
            lambda: [(partition.log, partition.last_stable_offset)], self.store.clock.now_ms()
        )

    @rule(index=partitions, data=st.data())
    def delete_records(self, index: int, data: st.DataObject) -> None:
        partition = self.partitions[index]
        start = partition.log_start_offset
        offset = data.draw(st.integers(start, max(start, partition.last_stable_offset)))
        partition.delete_records_before(offset)
        run_here(apply_all([partition.retention_candidate()], self.store.clock.now_ms()))
        self.store.directories.checkpoint()  # as the answer to DeleteRecords waits for

    @rule(index=partitions)
    def rebuild(self, index: int) -> None:
        """What the log alone tells is what is known already; of aborted transactions whose batches
        are all cleaned away, which nobody asks for, it may tell no more."""
        log = self.store.log(index)
        aborted = lookup.aborted_transactions(log, log.log_start_offset, log.log_end_offset)
        first_open = log.producers.first_open_offset
        rebuild_producers(log)
        assert log.producers.first_open_offset == first_open
        found = lookup.aborted_transactions(log, log.log_start_offset, log.log_end_offset)
        told = [it for it in aborted if it in found or has_batches(log, it)]
        assert found == (told if index in self.compacted else aborted)

    # Disasters, and what the coordinator does afterwards

    @rule(seed=st.none() | seeds)
    def cut_power(self, seed: int | None) -> None:
        self.store.crash(seed)
        self._recover()

    @rule()
    def kill(self) -> None:
        self.store.kill()
        self._recover()

    @rule()
    def restart(self) -> None:
        self.store.restart()
        self._recover()

    def _recover(self) -> None:
        self._lead()
        for key in [key for key in self.plain if key[1] >= self._end(key[0])]:
            del self.plain[key]
        for transaction in [*self.past, *self.current.values()]:
            for index, offset in list(transaction.values):
                if offset >= self._end(index):
                    del transaction.values[index, offset]
        for transaction in self.current.values():
            if transaction.committed is None:
                transaction.committed = False  # the producers are gone, too
            durable = {it: marker for it, marker in transaction.markers.items() if marker.is_done}
            transaction.markers = durable
            for index in durable:
                first = self.store.log(index).producers.open_transaction(transaction.producer)
                assert first is None, "a durable marker was lost"
        for producer, index in list(self.sequences):
            self._resume_sequence(producer, index)
        for index in range(PARTITIONS):
            assert self.partitions[index].last_stable_offset >= self.seen_up_to[index]
            self.read(index)

    def _resume_sequence(self, producer: int, index: int) -> None:
        known = self.store.log(index).producers
        if producer in known and known[producer].batches:
            self.sequences[producer, index] = known[producer].batches[-1].last_sequence + 1
        else:
            del self.sequences[producer, index]

    def _end(self, index: int) -> int:
        return self.store.log(index).log_end_offset

    # Readers

    @rule(index=partitions)
    def read(self, index: int) -> None:
        partition = self.partitions[index]
        start, end = partition.log_start_offset, partition.last_stable_offset
        got = dict(read_committed(partition))
        committed = self._committed(index, start, end)
        last = {key_of(value): offset for offset, value in committed.items()}
        if index in self.compacted:
            assert got.items() <= committed.items()
            assert got.keys() >= set(last.values())
        else:
            assert got == committed
        for offset, value in self.seen[index].items():
            if offset >= start and last.get(key_of(value)) == offset:
                assert got[offset] == value, "what was committed is gone"
        self.seen[index] = got
        self.seen_up_to[index] = end

    def _committed(self, index: int, start: int, end: int) -> dict[int, bytes]:
        values = {offset: value for (at, offset), value in self.plain.items() if at == index}
        for transaction in [*self.past, *self.current.values()]:
            if transaction.committed:
                values |= {o: value for (at, o), value in transaction.values.items() if at == index}
        return {offset: values[offset] for offset in sorted(values) if start <= offset < end}

    @invariant()
    def the_last_stable_offset_is_where_it_should_be(self) -> None:
        for index, partition in enumerate(getattr(self, "partitions", ())):
            stable = partition.last_stable_offset
            assert self.seen_up_to[index] <= stable <= partition.high_watermark
            for transaction in self.current.values():
                if transaction.committed is None:
                    offsets = [o for at, o in transaction.values if at == index]
                    assert stable <= min(offsets, default=stable) or (
                        stable == partition.log_start_offset
                    )


def has_batches(log: Log, transaction: AbortedTransaction) -> bool:
    """Whether the log still has batches of it, be they empty."""
    segments, _ = log.find_segment(log.log_start_offset)
    return any(
        header.producer_id == transaction.producer_id
        and transaction.first_offset <= header.base_offset < transaction.last_offset
        for segment in segments
        for _, header in segment.walk(0, may_block=True)
    )


def key_of(value: bytes) -> bytes:
    return value.split(b":")[0]


def read_committed(partition: Partition) -> Iterator[tuple[int, bytes]]:
    """What a consumer makes of the answers: as Java's, it skips what the answers tell it to."""
    offset = partition.log_start_offset
    while True:
        records, aborted = partition.read_committed(offset, max_bytes=400, may_block=True)
        if not records:
            return
        coming = sorted(aborted, key=lambda it: it.first_offset)
        skipped: set[int] = set()
        for position, header in iterate_headers(records):
            while coming and coming[0].first_offset <= header.last_offset:
                skipped.add(coming.pop(0).producer_id)
            batch = decode_batch(records, position)
            if header.is_control:
                if batch and ControlType.from_key(batch[0].key) is ControlType.ABORT:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                for record in batch:
                    if record.offset >= offset:
                        yield record.offset, record.value or b""
        offset = header.next_offset


class TransactionLifeOfVersion1(TransactionLife):
    """Markers with the epoch of the records, which stays."""

    transaction_version = 1


LIVES = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TransactionLife.TestCase.settings = LIVES
TransactionLifeOfVersion1.TestCase.settings = LIVES
TestTransactionLife = TransactionLife.TestCase
TestTransactionLifeOfVersion1 = TransactionLifeOfVersion1.TestCase


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestLongTransactionLife(TransactionLife.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=1000, stateful_step_count=80, deadline=None)
