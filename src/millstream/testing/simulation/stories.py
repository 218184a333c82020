"""Histories: a cluster, its clients, faults, and healing."""

from __future__ import annotations

from typing import NamedTuple

from millstream.testing.simulation.clients import ACKS_ALL, Producer
from millstream.testing.simulation.cluster import Cluster, Parts
from millstream.testing.simulation.faults import Faults
from millstream.testing.simulation.world import Violation

FAULTS_MS = 12_000
HEALING_MAX_MS = 30_000
TOPICS = ["orders", "payments"]


class Outcome(NamedTuple):
    """What happened in a history without a violation."""

    event_count: int
    ack_count: int
    election_count: int
    truncation_count: int
    wipe_count: int
    isr_change_count: int
    healing_ms: int
    faults: dict[str, int]


def run(seed: int, *, parts: Parts | None = None, faults_ms: int = FAULTS_MS) -> Outcome:
    """One history. Raises `Violation` with the seed and the last events."""
    cluster = Cluster(seed, host_count=3 + seed % 2, parts=parts)
    try:
        return _run(cluster, faults_ms)
    except Violation:
        raise
    except Exception as error:
        raise cluster.world.violation(f"{type(error).__name__}: {error}") from error


def _run(cluster: Cluster, faults_ms: int) -> Outcome:
    world = cluster.world
    start(cluster)
    producers = start_producers(cluster)
    faults = Faults(cluster, TOPICS)
    world.run_until(world.now_ms + faults_ms)
    faults.stop()
    began_ms = world.now_ms
    heal(cluster, producers)
    return Outcome(
        world.event_count,
        cluster.invariants.ack_count,
        cluster.invariants.election_count,
        cluster.invariants.truncation_count,
        cluster.invariants.wipe_count,
        cluster.invariants.isr_change_count,
        world.now_ms - began_ms,
        faults.counts,
    )


def start(cluster: Cluster, topics: list[str] = TOPICS) -> None:
    """All brokers run and are active, and the topics exist."""
    for host in cluster.hosts:
        cluster.start(host)
    for _ in range(100):
        cluster.world.run_until(cluster.world.now_ms + 50)
        brokers = cluster.zookeeper.image.brokers
        if len(brokers) == len(cluster.hosts) and all(it.is_active for it in brokers.values()):
            break
    for topic in topics:
        cluster.create_topic(topic, 2)


def start_producers(cluster: Cluster, topics: list[str] = TOPICS) -> list[Producer]:
    return [
        Producer(cluster, 10 * number + index + (5 if acks == 1 else 0), topic, index, acks)
        for number, topic in enumerate(topics, 1)
        for index in range(2)
        for acks in (ACKS_ALL, 1)
    ]


def heal(cluster: Cluster, producers: list[Producer], topics: list[str] = TOPICS) -> None:
    """Without faults, everything comes back in bounded time (12), and the account is right."""
    world = cluster.world
    until_ms = world.now_ms + HEALING_MAX_MS
    for producer in producers:
        producer.is_stopping = True
    while True:
        for topic in topics:
            cluster.create_topic(topic, 2)  # as soon as there are enough brokers again
        world.run_until(world.now_ms + 100)
        waiting = [producer for producer in producers if not producer.is_idle]
        problem = f"{len(waiting)} producers wait" if waiting else cluster.problem()
        if problem is None:
            break
        if world.now_ms > until_ms:
            raise world.violation(f"not healed after {HEALING_MAX_MS} ms: {problem}")
    for producer in producers:
        producer.check()
    check_producer_states(cluster)


def check_producer_states(cluster: Cluster) -> None:
    """Equal logs have equal producers (9)."""
    for key, partition in cluster.partitions().items():
        states = {
            replica: cluster.processes[replica].replicas[key].log.producers.encode_snapshot()
            for replica in partition.replicas
        }
        if len(set(states.values())) > 1:
            raise cluster.world.violation(f"replicas of {key[1]} have different producers")
