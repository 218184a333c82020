"""Three brokers against three brokers: produce with acks=all and three replicas, failover, memory.

Millstream flushes on every in-sync replica before it acknowledges; Kafka does not. Sessions are
equally long on both sides. Each figure is taken on a new cluster, and the clusters of the two sides
never run at the same time.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata
from tests.peers.kafka_cluster import KafkaCluster, start_kafka_cluster
from tests.peers.servers import Server

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target
from millstream.testing.cluster import ClusterProcesses

BROKERS = 3
PARTITIONS = 6
MANY_PARTITIONS = 1_000
RECORD = b"x" * 1024
SESSION_MS = 6_000
SETTLE_SECONDS = 3.0
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.02


class Side(Protocol):
    """A running cluster of one kind, with brokers from id 1."""

    @property
    def bootstrap(self) -> str: ...

    def pid(self, broker: int) -> int: ...

    def start(self, broker: int) -> None: ...


class MillstreamSide:
    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.addresses

    def pid(self, broker: int) -> int:
        pid = self._cluster.brokers[broker].pid
        assert pid is not None
        return pid

    def start(self, broker: int) -> None:
        self._cluster.brokers[broker].start()


class KafkaSide:
    def __init__(self, cluster: KafkaCluster) -> None:
        self._nodes: list[Server] = cluster.nodes
        self.bootstrap = cluster.bootstrap

    def pid(self, broker: int) -> int:
        return self._nodes[broker - 1].process.pid

    def start(self, broker: int) -> None:
        node = self._nodes[broker - 1]
        node.process.wait()
        node.process = subprocess.Popen(
            node.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


@contextmanager
def _millstream(directory: Path) -> Iterator[Side]:
    with ClusterProcesses(directory, BROKERS, session_ms=SESSION_MS) as cluster:
        yield MillstreamSide(cluster)


@contextmanager
def _kafka(directory: Path) -> Iterator[Side]:
    settings = {"broker.session.timeout.ms": str(SESSION_MS)}
    cluster = start_kafka_cluster(directory, BROKERS, settings)
    try:
        yield KafkaSide(cluster)
    finally:
        for node in cluster.nodes:
            node.kill()


SIDES = {"millstream": _millstream, "kafka": _kafka}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    sides = [target.name for target in targets if target.name in SIDES]
    rounds = 1 if scale.is_quick else 2
    many = PARTITIONS if scale.is_quick else MANY_PARTITIONS
    memory = Measurement("memory of three brokers", "MB", "lower is better", bar=0.2)
    produce = Measurement("produce 1 KB, acks=all, 3 replicas", "records/s", bar=1.0, aim=1.3)
    stopped = Measurement("no acknowledgement around a clean stop", "s", "lower is better", bar=1)
    handed_over = Measurement("led again after a clean stop", "s", "lower is better", bar=1)
    handed_over.notes["kafka"] = "Kafka 3.9.1 with ZooKeeper: 0.14 s"
    killed = Measurement("no acknowledgement after kill -9", "s", "lower is better", bar=1)
    led = Measurement("led again after kill -9", "s", "lower is better", bar=1)
    led.notes["kafka"] = "Kafka 3.9.1 with ZooKeeper and the same session: 9.0 s"
    many_led = Measurement(f"{many} partitions led again", "s", "lower is better", bar=1)
    caught_up = Measurement("a returning replica catches up", "MB/s", bar=1.0)
    for name in itertools.chain.from_iterable([sides] * rounds):
        with _cluster(name) as side:
            topic = _create_topic(side)
            time.sleep(SETTLE_SECONDS)
            memory.add(name, _memory_mb(side))
            for _ in range(scale.rounds):
                produce.add(name, _produce(side, topic, scale.of(200_000)))
            stopped.add(name, _gap(side, topic, signal.SIGTERM))
        with _cluster(name) as side:
            killed.add(name, _gap(side, _create_topic(side), signal.SIGKILL))
        for figure, partitions, how in (
            (handed_over, PARTITIONS, signal.SIGTERM),
            (led, PARTITIONS, signal.SIGKILL),
            (many_led, many, signal.SIGKILL),
        ):
            with _cluster(name) as side:
                figure.add(name, _seconds_until_led(side, _create_topic(side, partitions), how))
        with _cluster(name) as side:
            caught_up.add(name, _catch_up(side, _create_topic(side), scale.of(400_000)))
    yield from (memory, produce, stopped, handed_over, killed, led, many_led, caught_up)


@contextmanager
def _cluster(name: str) -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as directory, SIDES[name](Path(directory)) as side:
        yield side


def _memory_mb(side: Side) -> float:
    brokers = range(1, BROKERS + 1)
    return sum(psutil.Process(side.pid(it)).memory_info().rss for it in brokers) / 1e6


def _create_topic(side: Side, partitions: int = PARTITIONS) -> str:
    """A topic that all brokers know, and all replicas are in sync."""
    new = NewTopic("t", partitions, BROKERS, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": side.bootstrap})
    admin.create_topics([new])["t"].result(PATIENCE_SECONDS)
    _wait_for(side, "t", lambda it: len(it.partitions) == partitions and _is_in_sync(it))
    return "t"


def _wait_for(side: Side, topic: str, is_so: Callable[[TopicMetadata], bool]) -> float:
    """The seconds until the topic is so."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})
    started = time.perf_counter()
    while not is_so(admin.list_topics(topic, timeout=30).topics[topic]):
        if time.perf_counter() > started + PATIENCE_SECONDS:
            raise TimeoutError(f"{topic!r} is not as it should be after {PATIENCE_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    return time.perf_counter() - started


def _is_in_sync(topic: TopicMetadata) -> bool:
    return all(len(it.isrs) == BROKERS and it.leader >= 0 for it in topic.partitions.values())


def _leader(side: Side, topic: str, index: int) -> int:
    admin = AdminClient({"bootstrap.servers": side.bootstrap})
    return admin.list_topics(topic, timeout=30).topics[topic].partitions[index].leader


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
    producer.flush(PATIENCE_SECONDS)
    assert not failures, failures[0]
    return count / (time.perf_counter() - started)


def _seconds_until_led(side: Side, topic: str, how: signal.Signals) -> float:
    """From the end of a broker until others lead all of the topic's partitions."""
    broker = _leader(side, topic, 0)
    os.kill(side.pid(broker), how)
    return _wait_for(
        side, topic, lambda it: all(at.leader not in (broker, -1) for at in it.partitions.values())
    )


def _catch_up(side: Side, topic: str, count: int) -> float:
    """MB per second that a broker fetches which was away while they were written."""
    broker = _leader(side, topic, 0)
    os.kill(side.pid(broker), signal.SIGKILL)
    _wait_for(side, topic, lambda it: all(broker not in at.isrs for at in it.partitions.values()))
    _produce(side, topic, count)
    side.start(broker)
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})
    while broker not in admin.list_topics(topic, timeout=30).brokers:
        time.sleep(POLL_SECONDS)
    return count * len(RECORD) / 1e6 / _wait_for(side, topic, _is_in_sync)


def _gap(side: Side, topic: str, how: signal.Signals) -> float:
    """The longest time between acknowledgements of a partition whose leader ends."""
    pid = side.pid(_leader(side, topic, 0))
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
                partition=0,
                on_delivery=lambda e, m: e or times.append(time.perf_counter()),
            )
            producer.poll(0)
        producer.flush(PATIENCE_SECONDS)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(2)
    before = len(times)
    ended = time.perf_counter()
    os.kill(pid, how)
    while time.perf_counter() < ended + PATIENCE_SECONDS:
        time.sleep(0.1)
        if times and times[-1] > ended + 2 and time.perf_counter() > ended + SESSION_MS / 1000 + 4:
            break
    stopping.set()
    writer.join()
    return max(
        after - earlier for earlier, after in itertools.pairwise(times[max(0, before - 10) :])
    )
