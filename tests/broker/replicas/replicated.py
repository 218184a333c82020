"""A partition with several replicas, simulated: fake logs, the real `Leadership`, no I/O.

A controller, as a cluster would have one, elects leaders and decides the in-sync set. Leaders learn
of both later, so that deposed ones go on for a while. Followers flush before they fetch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from millstream.broker.replicas.leadership import EndedTransaction, Leadership
from millstream.broker.replicas.pending import ACKS_ALL, PendingAppend
from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, ErrorCode

RECORD_BYTES = 10


class Entry(NamedTuple):
    """One record, in a batch of its own."""

    epoch: int
    value: int
    producer: int | None = None  # of a transaction
    is_end: bool = False
    acks_all: bool = False


class FakeLog:
    """Entries in memory; it is a `LedLog`, and its own `OpenTransactions`."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.entries: list[Entry] = []
        self.log_start_offset = 0
        self.flushed_offset = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def producers(self) -> FakeLog:
        return self

    @property
    def first_open_offset(self) -> int | None:
        return min(self.open_transactions().values(), default=None)

    def open_transactions(self) -> dict[int, int]:
        """Producer -> where its open transaction begins."""
        return self._transactions()[0]

    def ended_from(self, offset: int) -> list[EndedTransaction]:
        """The transactions whose end markers are not below an offset."""
        return [it for it in self._transactions()[1] if it.marker_offset >= offset]

    def _transactions(self) -> tuple[dict[int, int], list[EndedTransaction]]:
        begun: dict[int, int] = {}
        ended: list[EndedTransaction] = []
        for offset, entry in enumerate(self.entries):
            if entry.producer is None:
                continue
            if not entry.is_end:
                begun.setdefault(entry.producer, offset)
            elif entry.producer in begun:
                ended.append(EndedTransaction(begun.pop(entry.producer), offset))
        return begun, ended

    def truncate(self, end: int) -> None:
        del self.entries[end:]
        self.flushed_offset = min(self.flushed_offset, end)


@dataclass
class Acknowledged:
    """What a producer was promised: this value at this offset."""

    value: int
    offset: int


@dataclass
class Leading:
    """One leader's term, deposed or not."""

    leadership: Leadership
    notified: list[tuple[int, int]] = field(default_factory=list)  # high watermark, last stable
    pending: list[PendingAppend] = field(default_factory=list)
    flush_end: int | None = None  # of the flush under way


class FakeReplica:
    def __init__(self, replica_id: int, config: TopicConfig) -> None:
        self.id = replica_id
        self.log = FakeLog(config)
        self.high_watermark = 0  # as its leader last said
        self.epoch = 0  # the latest that it knows of
        self.is_up = True
        self.leading: Leading | None = None

    def lead(self, epoch: int, in_sync: frozenset[int], replica_count: int) -> None:
        log, notified = self.log, list[tuple[int, int]]()
        self.epoch = epoch
        high_watermark = min(self.high_watermark, log.log_end_offset)

        def changed() -> None:
            if self.leading is not None and self.leading.notified is notified:
                led = self.leading.leadership
                notified.append((led.high_watermark, led.last_stable_offset))

        leadership = Leadership(
            log,
            epoch=epoch,
            high_watermark=high_watermark,
            changed=changed,
            in_sync_followers=in_sync - {self.id},
            replica_count=replica_count,
            ended=log.ended_from(high_watermark),
        )
        self.leading = Leading(leadership, notified)
        changed()

    def stop_leading(self) -> None:
        if self.leading is not None:
            leading, self.leading = self.leading, None
            self.high_watermark = leading.leadership.high_watermark
            leading.leadership.resign(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leads"))
            assert all(pending.is_done for pending in leading.pending), "an append was forgotten"
            assert not leading.leadership.waiting_count


class Cluster:
    """Replicas, the controller's decisions, and what producers were promised."""

    def __init__(self, dice: Random, *, replica_count: int, config: TopicConfig) -> None:
        self.dice = dice
        self.config = config
        self.replicas = [FakeReplica(number, config) for number in range(replica_count)]
        self.in_sync = frozenset(range(replica_count))
        self.epoch = 0
        self.leader: int | None = None
        self.proposal: tuple[int, frozenset[int]] | None = None  # of an epoch's leader
        self.acknowledged: list[Acknowledged] = []
        self.next_value = 0
        self.elect()

    @property
    def min_in_sync(self) -> int:
        return min(self.config.min_insync_replicas, len(self.replicas))

    def leader_replica(self) -> FakeReplica | None:
        return None if self.leader is None else self.replicas[self.leader]

    # The controller

    def elect(self, avoid: int | None = None) -> None:
        """Let a live member of the in-sync set lead, in a new epoch."""
        candidates = sorted(it for it in self.in_sync if self.replicas[it].is_up and it != avoid)
        self.leader = self.dice.choice(candidates) if candidates else None
        if self.leader is None:
            return
        self.epoch += 1
        self.proposal = None
        replica = self.replicas[self.leader]
        replica.stop_leading()
        replica.lead(self.epoch, self.in_sync, len(self.replicas))

    def decide_proposal(self) -> None:
        if self.proposal is None:
            return
        epoch, in_sync = self.proposal
        self.proposal = None
        leader = self.leader_replica()
        if leader is None or leader.leading is None or epoch != self.epoch:
            return
        if all(self.replicas[it].is_up for it in in_sync) and self.dice.random() < 0.8:
            self.in_sync = in_sync
            leader.leading.leadership.set_in_sync(in_sync - {leader.id})
        else:
            leader.leading.leadership.withdraw_proposal()

    def _drop(self, replica: FakeReplica) -> None:
        """A replica that is down leaves the in-sync set, unless it is the last one in it."""
        if self.in_sync != {replica.id}:
            self.in_sync -= {replica.id}
        leader = self.leader_replica()
        if leader is not None and leader.leading is not None:
            leader.leading.leadership.set_in_sync(self.in_sync - {leader.id})
            self.proposal = None

    # Faults

    def crash(self, replica: FakeReplica, *, power_cut: bool) -> None:
        replica.stop_leading()
        replica.is_up = False
        if power_cut:
            replica.log.truncate(replica.log.flushed_offset)
            replica.high_watermark = min(replica.high_watermark, replica.log.log_end_offset)
        was_leader = self.leader == replica.id
        if was_leader:
            self.leader = None
        self._drop(replica)
        if was_leader:
            self.elect()

    def restart(self, replica: FakeReplica) -> None:
        replica.is_up = True
        replica.log.flushed_offset = replica.log.log_end_offset  # as recovery does
        if self.leader is None:
            self.elect()

    # Producers

    def append(
        self, replica: FakeReplica, acks: int, *, producer: int | None = None, is_end: bool = False
    ) -> None:
        leading = replica.leading
        if leading is None:
            return
        leadership, log = leading.leadership, replica.log
        if acks == ACKS_ALL:
            try:
                leadership.check_in_sync()
            except ApiError:
                return
        offset, value = log.log_end_offset, self.next_value
        self.next_value += 1
        began = log.open_transactions()
        log.entries.append(Entry(leadership.epoch, value, producer, is_end, acks == ACKS_ALL))
        if is_end and producer in began:
            leadership.transaction_ended(began[producer], offset)
        elif producer is not None and not is_end and producer not in began:
            leadership.transaction_began(offset)
        pending = PendingAppend(offset, offset + 1)
        must_flush = acks == ACKS_ALL and self.config.millstream_acks_all_flush
        leading.pending.append(pending)
        leadership.appended(pending, RECORD_BYTES, acks=acks, must_flush=must_flush)
        if acks == ACKS_ALL:
            pending.when_done(lambda done: self._answered(leading, done, value))

    def send_again(self, replica: FakeReplica) -> None:
        """A producer repeats its last request, with acks=all."""
        leading = replica.leading
        if leading is None or not leading.pending:
            return
        first = leading.pending[-1]
        if first.next_offset > replica.log.log_end_offset or first.error is not None:
            return
        again = PendingAppend(first.first_offset, first.next_offset)
        value = replica.log.entries[first.first_offset].value
        must_flush = self.config.millstream_acks_all_flush
        leading.pending.append(again)
        leading.leadership.duplicated(again, acks=ACKS_ALL, must_flush=must_flush)
        again.when_done(lambda done: self._answered(leading, done, value))

    def _answered(self, leading: Leading, pending: PendingAppend, value: int) -> None:
        if pending.error is None:
            led = leading.leadership
            assert pending.next_offset <= led.high_watermark, "answered before it was committed"
            assert led.in_sync_count >= self.min_in_sync, "answered below min.insync.replicas"
            self.acknowledged.append(Acknowledged(value, pending.first_offset))

    # Flushes and fetches

    def begin_flush(self, replica: FakeReplica) -> None:
        if replica.leading is not None and replica.leading.flush_end is None:
            replica.leading.flush_end = replica.log.log_end_offset

    def end_flush(self, replica: FakeReplica) -> None:
        leading = replica.leading
        if leading is not None and leading.flush_end is not None:
            log = replica.log
            log.flushed_offset = max(log.flushed_offset, leading.flush_end)
            leading.flush_end = None
            if leading.leadership.flushed():
                self.begin_flush(replica)

    def learn(self, replica: FakeReplica) -> None:
        """The replica hears of the latest epoch; a deposed leader resigns."""
        if replica.epoch < self.epoch:
            replica.stop_leading()
            replica.epoch = self.epoch

    def fetch(self, follower: FakeReplica, leader: FakeReplica, limit: int) -> None:
        """One fetch, if both believe in the same epoch."""
        leading = leader.leading
        if leading is None or follower is leader or follower.leading is not None:
            return
        if follower.epoch != leader.epoch:
            return
        log, led = follower.log, leader.log
        if not led.log_start_offset <= log.log_end_offset:
            log.entries = led.entries[: led.log_start_offset]  # too far behind: start there
        self._truncate(follower, led)
        log.log_start_offset = min(
            max(log.log_start_offset, led.log_start_offset), len(log.entries)
        )
        log.flushed_offset = log.log_end_offset  # before it fetches on
        leading.leadership.fetched(follower.id, log.flushed_offset)
        log.entries += led.entries[log.log_end_offset : log.log_end_offset + limit]
        high_watermark = min(leading.leadership.high_watermark, log.log_end_offset)
        follower.high_watermark = max(follower.high_watermark, high_watermark)

    def _truncate(self, follower: FakeReplica, led: FakeLog) -> None:
        """Cut what the leader does not have, found by the epochs alone."""
        log = follower.log
        end = min(log.log_end_offset, led.log_end_offset)
        while end and log.entries[end - 1].epoch != led.entries[end - 1].epoch:
            end -= 1
        assert log.entries[:end] == led.entries[:end], "log matching: same epoch, other records"
        log.truncate(end)
        follower.high_watermark = min(follower.high_watermark, end)

    # The in-sync set

    def propose(self, leader: FakeReplica, member: int, *, join: bool) -> None:
        leading = leader.leading
        if leading is None or member == leader.id or self.proposal is not None:
            return
        leadership = leading.leadership
        if join and not leadership.may_join(member):
            return
        in_sync = leadership.in_sync_followers
        proposed = in_sync | {member} if join else in_sync - {member}
        if proposed != in_sync:
            leadership.propose_in_sync(proposed)
            self.proposal = (leadership.epoch, proposed | {leader.id})
