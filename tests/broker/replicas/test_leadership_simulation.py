"""Thousands of random steps with two to five replicas: the promises hold after every one of them.

A failure names its seed: run that one again with `pytest -k 'seed-17-'`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from millstream.config.topic import TopicConfig
from tests.broker.replicas.replicated import Cluster, FakeReplica, Leading

STEPS = 250
PRODUCERS = 3


class Simulation:
    """One life of a partition, made of the seed alone."""

    def __init__(self, seed: int, *, flush: bool) -> None:
        self.dice = Random(seed)
        replica_count = self.dice.randint(2, 5)
        config = TopicConfig(
            min_insync_replicas=self.dice.randint(1, 3), millstream_acks_all_flush=flush
        )
        self.cluster = Cluster(self.dice, replica_count=replica_count, config=config)
        self.power_cuts = flush  # without flushes nothing is promised after one
        self.highest: dict[int, int] = {}  # leader epoch -> high watermark
        self.bytes_seen: dict[int, int] = {}

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            *[self.append] * 8,
            *[self.append_in_transaction] * 3,
            *[self.end_transaction] * 2,
            self.send_again,
            *[self.flush] * 6,
            *[self.fetch] * 14,
            *[self.learn] * 2,
            *[self.change_in_sync] * 2,
            *[self.cluster.decide_proposal] * 2,
            self.delete_records,
            *[self.restart] * 2,
        ]
        for _ in range(STEPS):
            self.dice.choice(steps)()
            if self.dice.random() < 0.02:
                self.fault()
            self.check()
        self.heal()

    # Steps

    def _anyone(self) -> FakeReplica:
        return self.dice.choice(self.cluster.replicas)

    def _leader(self) -> FakeReplica:
        """Mostly the leader; sometimes one that was deposed, or that never led."""
        leader = self.cluster.leader_replica()
        return leader if leader is not None and self.dice.random() < 0.85 else self._anyone()

    def append(self) -> None:
        acks = self.dice.choice([ACKS_NONE, ACKS_LEADER, ACKS_ALL, ACKS_ALL])
        self.cluster.append(self._leader(), acks)

    def append_in_transaction(self) -> None:
        producer = self.dice.randrange(PRODUCERS)
        self.cluster.append(self._leader(), ACKS_ALL, producer=producer)

    def end_transaction(self) -> None:
        leader = self._leader()
        producers = sorted(leader.log.open_transactions())
        if producers:
            producer = self.dice.choice(producers)
            self.cluster.append(leader, ACKS_ALL, producer=producer, is_end=True)

    def send_again(self) -> None:
        self.cluster.send_again(self._leader())

    def flush(self) -> None:
        replica = self._leader()
        self.dice.choice([self.cluster.begin_flush, self.cluster.end_flush])(replica)

    def fetch(self) -> None:
        follower = self._anyone()
        if follower.is_up:
            self.cluster.learn(follower) if self.dice.random() < 0.5 else None
            self.cluster.fetch(follower, self._leader(), limit=self.dice.choice([0, 1, 2, 5, 100]))

    def learn(self) -> None:
        replica = self._anyone()
        if replica.is_up:
            self.cluster.learn(replica)

    def change_in_sync(self) -> None:
        member = self._anyone()
        join = member.is_up and self.dice.random() < 0.7
        self.cluster.propose(self._leader(), member.id, join=join)

    def delete_records(self) -> None:
        leader = self.cluster.leader_replica()
        if leader is not None and leader.leading is not None:
            led, log = leader.leading.leadership, leader.log
            if log.log_start_offset < led.high_watermark:
                log.log_start_offset = self.dice.randint(log.log_start_offset, led.high_watermark)
                led.log_start_moved()

    def fault(self) -> None:
        replica = self._anyone()
        if self.dice.random() < 0.4:
            self.cluster.elect(avoid=self.cluster.leader)
        elif replica.is_up:
            power_cut = self.power_cuts and self.dice.random() < 0.5
            self.cluster.crash(replica, power_cut=power_cut)

    def restart(self) -> None:
        replica = self._anyone()
        if not replica.is_up:
            self.cluster.restart(replica)

    # Invariants

    def check(self) -> None:
        for replica in self.cluster.replicas:
            if replica.leading is not None:
                self.offsets_are_in_order(replica, replica.leading)
                self.high_watermark_is_monotonic(replica.leading)
                self.last_stable_offset_is_right(replica, replica.leading)
                self.watchers_were_notified(replica.leading)
        leader = self.cluster.leader_replica()
        if leader is not None and leader.leading is not None:
            self.committed_is_on_every_in_sync_replica(leader, leader.leading)
            self.acknowledged_is_never_lost(leader)
            if self.power_cuts:
                self.acks_all_is_visible_only_where_it_is_flushed(leader.leading)

    def offsets_are_in_order(self, replica: FakeReplica, leading: Leading) -> None:
        led, log = leading.leadership, replica.log
        assert log.log_start_offset <= led.last_stable_offset <= led.high_watermark
        assert led.high_watermark <= log.log_end_offset

    def high_watermark_is_monotonic(self, leading: Leading) -> None:
        led = leading.leadership
        assert led.high_watermark >= self.highest.get(led.epoch, 0)
        moved = led.high_watermark > self.highest.get(led.epoch, led.high_watermark)
        assert led.visible_bytes >= self.bytes_seen.get(led.epoch, 0) + moved
        assert led.stable_bytes <= led.visible_bytes
        self.highest[led.epoch] = led.high_watermark
        self.bytes_seen[led.epoch] = led.visible_bytes

    def last_stable_offset_is_right(self, replica: FakeReplica, leading: Leading) -> None:
        led, log = leading.leadership, replica.log
        unstable = [it.first_offset for it in log.ended_from(led.high_watermark)]
        unstable += log.open_transactions().values()
        expected = min([led.high_watermark, *unstable])
        assert led.last_stable_offset == max(expected, log.log_start_offset)

    def watchers_were_notified(self, leading: Leading) -> None:
        led = leading.leadership
        assert leading.notified[-1] == (led.high_watermark, led.last_stable_offset)

    def committed_is_on_every_in_sync_replica(self, leader: FakeReplica, leading: Leading) -> None:
        start, end = leader.log.log_start_offset, leading.leadership.high_watermark
        for member in self.cluster.in_sync - {leader.id}:
            log = self.cluster.replicas[member].log
            assert log.entries[start:end] == leader.log.entries[start:end]

    def acks_all_is_visible_only_where_it_is_flushed(self, leading: Leading) -> None:
        end = leading.leadership.high_watermark
        for member in self.cluster.in_sync:
            log = self.cluster.replicas[member].log
            assert not any(entry.acks_all for entry in log.entries[log.flushed_offset : end])

    def acknowledged_is_never_lost(self, leader: FakeReplica) -> None:
        entries, start = leader.log.entries, leader.log.log_start_offset
        for promise in self.cluster.acknowledged:
            if promise.offset >= start:
                assert promise.offset < len(entries), f"lost {promise}"
                assert entries[promise.offset].value == promise.value, f"replaced {promise}"

    # The end

    def heal(self) -> None:
        """Everything comes back: all replicas are in sync and equal, and nobody waits any more."""
        cluster = self.cluster
        for replica in cluster.replicas:
            if not replica.is_up:
                cluster.restart(replica)
        if cluster.leader is None:
            cluster.elect()
        for replica in cluster.replicas:
            cluster.learn(replica)
        leader = cluster.leader_replica()
        assert leader is not None
        assert leader.leading is not None
        cluster.proposal = None
        for _ in range(3):
            cluster.begin_flush(leader)
            cluster.end_flush(leader)
            for replica in cluster.replicas:
                cluster.fetch(replica, leader, limit=10_000)
            self.check()
        everybody = frozenset(range(len(cluster.replicas)))
        assert all(leader.leading.leadership.may_join(it) for it in everybody - {leader.id})
        cluster.in_sync = everybody
        led = leader.leading.leadership
        led.set_in_sync(everybody - {leader.id})
        self.check()
        assert led.high_watermark == leader.log.log_end_offset
        assert led.waiting_count == 0
        assert all(replica.log.entries == leader.log.entries for replica in cluster.replicas)


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "unflushed"])
@pytest.mark.parametrize("seed", range(150), ids=lambda seed: f"seed-{seed}-")
def test_promises_hold_after_every_step(seed: int, flush: bool) -> None:
    Simulation(seed, flush=flush).run()


def test_simulation_sees_what_it_should() -> None:
    """Acknowledgements, elections and changes of the in-sync set do happen."""
    acknowledged = epochs = shrunk = 0
    for seed in range(20):
        simulation = Simulation(seed, flush=True)
        simulation.run()
        acknowledged += len(simulation.cluster.acknowledged)
        epochs += simulation.cluster.epoch
        shrunk += len(simulation.highest) > 1
    assert acknowledged > 200
    assert epochs > 40
    assert shrunk > 10
