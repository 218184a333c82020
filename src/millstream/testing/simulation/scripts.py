"""Scripted histories: the races that one part of the rules exists for, made to happen.

Each is a function of the parts under test. With the real parts it ends in a healed cluster; with
the part broken for which it was written, an invariant is violated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from millstream.coordination.replication.leader import LeaderReplica
from millstream.testing.simulation import stories
from millstream.testing.simulation.clients import ACKS_ALL, Producer
from millstream.testing.simulation.cluster import Cluster, Parts
from millstream.testing.simulation.invariants import Key
from millstream.testing.simulation.network import ZOOKEEPER
from millstream.testing.simulation.process import Process
from millstream.testing.simulation.surroundings import Replica

TOPIC = "orders"
UNTIL_MAX_MS = 10_000


class Script:
    """A cluster of three hosts with one topic, whose partition 0 is written with acks=all."""

    def __init__(self, parts: Parts | None) -> None:
        self.cluster = Cluster(1, parts=parts)
        self.world = self.cluster.world
        self.network = self.cluster.network
        stories.start(self.cluster, [TOPIC])
        self.key: Key = (self.cluster.zookeeper.image.topics[TOPIC].id, 0)
        self.leader_id, *self.follower_ids = self.cluster.partitions()[self.key].replicas
        self.producers = [Producer(self.cluster, 1, TOPIC, 0, ACKS_ALL)]
        self.until(lambda: self.cluster.invariants.ack_count > 5)

    def process(self, host: int) -> Process:
        return self.cluster.processes[host]

    def replica(self, host: int) -> Replica:
        return self.process(host).replicas[self.key]

    def machine(self, host: int) -> LeaderReplica | None:
        """The leader's machine, if that host leads."""
        process = self.cluster.processes.get(host)
        replica = process.replicas.get(self.key) if process is not None else None
        return replica.leader if replica is not None else None

    def session_of(self, host: int) -> int:
        sessions = self.cluster.zookeeper.sessions.values()
        return next(session.id for session in sessions if session.broker_id == host)

    def active(self) -> list[int]:
        brokers = self.cluster.zookeeper.image.brokers.values()
        return [broker.id for broker in brokers if broker.is_active]

    def isr(self) -> tuple[int, ...]:
        return self.cluster.partitions()[self.key].isr

    def until(self, condition: Callable[[], bool]) -> None:
        """Run events, one by one, until the condition holds."""
        end_ms = self.world.now_ms + UNTIL_MAX_MS
        while not condition():
            if self.world.now_ms > end_ms:
                raise RuntimeError(f"the story does not go on after {UNTIL_MAX_MS} ms")
            self.world.step()

    def run(self, duration_ms: int) -> None:
        self.world.run_until(self.world.now_ms + duration_ms)

    def cut_off(self, host: int, *others: int) -> None:
        """No message passes between a host and these others."""
        for other in others:
            self.network.cut(host, other)
            self.network.cut(other, host)

    def heal(self) -> None:
        self.network.heal()
        self.cluster.prefers_leaders = True
        for host in self.cluster.hosts:
            self.cluster.disks[host].delay_max_ms = 5
            self.cluster.start(host)
        stories.heal(self.cluster, self.producers, [TOPIC])


def lost_answer_to_an_expansion(parts: Parts | None = None) -> Script:
    """A follower joins; the leader does not get the answer, and the follower stops."""
    it = Script(parts)
    leader, other, joining = it.leader_id, *it.follower_ids
    it.cut_off(joining, leader, other)
    it.until(lambda: joining not in it.isr())
    it.network.heal()

    def is_proposed() -> bool:
        machine = it.machine(leader)
        proposal = machine.proposal if machine is not None else None
        return proposal is not None and joining in proposal.isr

    it.until(is_proposed)
    it.network.cut(ZOOKEEPER, leader)
    it.until(lambda: joining in it.isr())
    it.cut_off(joining, leader, other)
    it.run(3_000)
    it.heal()
    return it


def proposal_to_shrink_that_is_not_decided(parts: Parts | None = None) -> Script:
    """A follower stops; the leader's proposal to go on without it does not arrive."""
    it = Script(parts)
    leader, other, behind = it.leader_id, *it.follower_ids
    it.cut_off(behind, leader, other)

    def is_proposed() -> bool:
        machine = it.machine(leader)
        return machine is not None and machine.proposal is not None

    it.until(is_proposed)
    it.network.cut(leader, ZOOKEEPER)
    it.run(700)
    it.heal()
    return it


def failover_before_followers_know_the_high_watermark(parts: Parts | None = None) -> Script:
    """The leader dies when a record is acknowledged that followers do not know to be committed."""
    it = Script(parts)

    def is_ahead() -> bool:
        shown = it.replica(it.leader_id).high_watermark
        return all(it.replica(host).high_watermark < shown for host in it.follower_ids)

    it.until(is_ahead)
    it.cluster.kill(it.leader_id, cuts_power=True)
    it.run(3_000)
    it.heal()
    return it


def follower_in_an_old_epoch(parts: Parts | None = None) -> Script:
    """A follower without metadata fetches from a leader that was deposed and elected again."""
    it = Script(parts)
    leader, _, follower = it.leader_id, *it.follower_ids
    it.network.cut(ZOOKEEPER, follower)
    it.cluster.zookeeper.expire(it.session_of(leader))
    it.cluster.prefers_leaders = True

    def leads_again() -> bool:
        machine = it.machine(leader)
        return machine is not None and machine.epoch > 0

    it.until(leads_again)
    it.run(2_000)
    it.heal()
    return it


def controller_that_is_deposed_while_it_decides(parts: Parts | None = None) -> Script:
    """Another controller is elected while a decision of the former one is on its way."""
    it = Script(parts)
    zookeeper = it.cluster.zookeeper
    it.cluster.kill(it.follower_ids[1], cuts_power=True)

    def deciding() -> list[int]:
        return [
            host for host, process in it.cluster.processes.items() if process.member.is_deciding
        ]

    it.until(lambda: bool(deciding()))
    [former] = deciding()
    zookeeper.expire(it.session_of(former))
    [other] = [host for host in it.cluster.processes if host != former]
    zookeeper.elect(it.session_of(other))
    it.run(2_000)
    it.heal()
    return it


def leader_that_restarts_at_once(parts: Parts | None = None) -> Script:
    """A leader loses its power and is back before its session has ended."""
    it = Script(parts)
    for _ in range(3):
        leader = it.cluster.partitions()[it.key].leader
        it.cluster.kill(leader, cuts_power=True)
        it.cluster.start(leader)
        it.run(1_500)
    it.heal()
    return it


def slow_disk_of_the_leader(parts: Parts | None = None) -> Script:
    """Followers flush sooner than the leader, which then loses its power."""
    it = Script(parts)
    it.cluster.disks[it.leader_id].delay_max_ms = 400
    acks = it.cluster.invariants.ack_count
    it.until(lambda: it.cluster.invariants.ack_count > acks + 3)
    it.cluster.kill(it.leader_id, cuts_power=True)
    it.run(2_000)
    it.heal()
    return it


def new_leader_with_an_old_high_watermark(parts: Parts | None = None) -> Script:
    """A follower that was left behind returns to a restarted leader, whose high watermark is 0."""
    it = Script(parts)
    leader, other, behind = it.leader_id, *it.follower_ids
    it.cut_off(behind, leader, other, ZOOKEEPER)
    it.until(lambda: behind not in it.isr())
    acks = it.cluster.invariants.ack_count
    it.until(lambda: it.cluster.invariants.ack_count > acks + 5)
    it.cluster.kill(leader, cuts_power=True)
    it.cluster.kill(other, cuts_power=True)
    it.run(2_000)
    it.network.heal()
    it.cluster.disks[behind].delay_max_ms = 2_000  # so that it does not catch up meanwhile
    it.until(lambda: it.active() == [behind])
    it.cluster.start(other)
    it.run(3_000)
    it.heal()
    return it


def follower_behind_the_start(parts: Parts | None = None) -> Script:
    """All records that a follower would need next are deleted while it is away."""
    it = Script(parts)
    leader, other, behind = it.leader_id, *it.follower_ids
    it.cut_off(behind, leader, other)
    it.until(lambda: behind not in it.isr())
    acks = it.cluster.invariants.ack_count
    it.until(lambda: it.cluster.invariants.ack_count > acks + 5)
    replica = it.replica(leader)
    replica.log.delete_records_before(replica.high_watermark)
    it.network.heal()
    it.until(lambda: behind in it.isr())
    if not it.cluster.invariants.wipe_count:
        raise it.world.violation("the follower was not wiped")
    it.cluster.kill(behind, cuts_power=True)
    it.run(500)
    it.heal()
    return it


Telling: TypeAlias = Callable[[Parts | None], Script]

SCRIPTS: dict[str, Telling] = {
    it.__name__: it
    for it in (
        lost_answer_to_an_expansion,
        proposal_to_shrink_that_is_not_decided,
        failover_before_followers_know_the_high_watermark,
        follower_in_an_old_epoch,
        controller_that_is_deposed_while_it_decides,
        leader_that_restarts_at_once,
        slow_disk_of_the_leader,
        new_leader_with_an_old_high_watermark,
        follower_behind_the_start,
    )
}
