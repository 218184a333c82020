"""Three brokers against three brokers: produce with acks=all and three replicas, failover, memory.

Millstream flushes on every in-sync replica before it acknowledges; Kafka does not. Sessions are
equally long on both sides. Brokers of a side run only while it is measured.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.peers.kafka_cluster import start_kafka_cluster

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target
from millstream.testing.cluster import SESSION_MS, ClusterProcesses

BROKERS = 3
PARTITIONS = 6
RECORD = b"x" * 1024
SETTLE_SECONDS = 3.0
_names = map("t{}".format, itertools.count())


@dataclass
class Side:
    """A running cluster of one kind."""

    name: str
    bootstrap: str
    pids: dict[int, int]  # by broker id

    def memory_mb(self) -> float:
        return sum(psutil.Process(pid).memory_info().rss for pid in self.pids.values()) / 1e6

    def create_topic(self) -> str:
        topic = next(_names)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(topic, PARTITIONS, BROKERS, config={"min.insync.replicas": "2"})
        admin.create_topics([new])[topic].result(60)
        return topic

    def leader(self, topic: str, index: int) -> int:
        """The process that leads a partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[index].leader
        return self.pids[leader]


@contextmanager
def _millstream(directory: Path) -> Iterator[Side]:
    with ClusterProcesses(directory, BROKERS) as cluster:
        pids = {node_id: broker.pid or 0 for node_id, broker in cluster.brokers.items()}
        yield Side("millstream", cluster.addresses, pids)


@contextmanager
def _kafka(directory: Path) -> Iterator[Side]:
    settings = {
        "broker.session.timeout.ms": str(SESSION_MS),
        "broker.heartbeat.interval.ms": "500",
    }
    cluster = start_kafka_cluster(directory, BROKERS, settings)
    try:
        pids = {node_id: node.process.pid for node_id, node in enumerate(cluster.nodes, 1)}
        yield Side("kafka", cluster.bootstrap, pids)
    finally:
        for node in cluster.nodes:
            if node.process.poll() is None:
                node.kill()


SIDES = {"millstream": _millstream, "kafka": _kafka}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    memory = Measurement("memory of three brokers", "MB", "lower is better", bar=0.2)
    produce = Measurement("produce 1 KB, acks=all, 3 replicas", "records/s", bar=1.0, aim=1.3)
    killed = Measurement("no acknowledgement after kill -9", "s", "lower is better", bar=0.7)
    stopped = Measurement("no acknowledgement around a clean stop", "s", "lower is better", bar=1)
    for _ in range(1 if scale.is_quick else 2):
        for target in targets:
            if target.name not in SIDES:
                continue
            with (
                tempfile.TemporaryDirectory() as directory,
                SIDES[target.name](Path(directory)) as side,
            ):
                topic = side.create_topic()
                time.sleep(SETTLE_SECONDS)
                memory.add(side.name, side.memory_mb())
                for _ in range(scale.rounds):
                    produce.add(side.name, _produce(side, topic, scale.of(200_000)))
                stopped.add(side.name, _gap(side, topic, 0, signal.SIGTERM))
                killed.add(side.name, _gap(side, topic, 1, signal.SIGKILL))
    yield from (memory, produce, killed, stopped)


def _produce(side: Side, topic: str, count: int) -> float:
    """Acknowledged records per second of one client."""
    producer = Producer(
        {"bootstrap.servers": side.bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
    )
    failures = []
    started = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, RECORD, on_delivery=lambda e, m: e and failures.append(e))
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(120)
    assert not failures, failures[0]
    return count / (time.perf_counter() - started)


def _gap(side: Side, topic: str, index: int, how: signal.Signals) -> float:
    """The longest time between acknowledgements of a partition whose leader ends."""
    pid = side.leader(topic, index)
    producer = Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "log_level": 0,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 50,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 50,
            "topic.metadata.refresh.fast.interval.ms": 50,
        }
    )
    times: list[float] = []
    stopping = threading.Event()

    def write() -> None:
        while not stopping.wait(0.005):
            producer.produce(
                topic,
                b"x",
                partition=index,
                on_delivery=lambda e, m: e or times.append(time.perf_counter()),
            )
            producer.poll(0)
        producer.flush(60)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(2)
    before = len(times)
    os.kill(pid, how)
    deadline = time.monotonic() + 60
    ended = time.perf_counter()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if times and times[-1] > ended + 2 and time.perf_counter() > ended + 4:
            break
    stopping.set()
    writer.join()
    return max(
        after - earlier for earlier, after in itertools.pairwise(times[max(0, before - 10) :])
    )
