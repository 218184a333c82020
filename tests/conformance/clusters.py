"""A cluster of three under test, Millstream's or Apache Kafka's: brokers by id, killed, stopped and
started; and what clients and the files of its replicas say about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client.cluster import parse_addresses
from millstream.client.connection import Connection
from millstream.testing.cluster import ClusterProcesses
from tests.peers.kafka_cluster import (
    KafkaCluster,
    start_kafka_cluster,
    start_old_kafka_cluster,
)
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.zookeeper import running_zookeeper

BROKERS = (1, 2, 3)


class Brokers(Protocol):
    """Some brokers and their files."""

    @property
    def bootstrap(self) -> str: ...

    def data(self, broker: int, /) -> Path: ...


class Cluster(Brokers, Protocol):
    """Brokers 1 to 3."""

    down: set[int]

    def start(self, broker: int) -> None: ...

    def stop(self, broker: int) -> None:
        """Cleanly."""

    def kill(self, broker: int) -> None: ...


class MillstreamCluster:
    """Three processes and a ZooKeeper."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self._directory = directory
        self._processes = ClusterProcesses(directory, settings=settings)
        self.down: set[int] = set()

    @classmethod
    @contextmanager
    def running(cls, directory: Path, settings: Mapping[str, object]) -> Iterator[Cluster]:
        cluster = cls(directory, settings)
        with cluster._processes:
            yield cluster

    @property
    def bootstrap(self) -> str:
        return self._processes.addresses

    def data(self, broker: int) -> Path:
        return self._directory / f"broker-{broker}" / "data"

    def start(self, broker: int) -> None:
        self._processes.brokers[broker].start()
        self.down.discard(broker)

    def stop(self, broker: int) -> None:
        self._processes.brokers[broker].stop()
        self.down.add(broker)

    def kill(self, broker: int) -> None:
        self._processes.brokers[broker].kill()
        self.down.add(broker)


class ApacheCluster:
    """Three nodes of Apache Kafka."""

    def __init__(self, nodes: KafkaCluster) -> None:
        self._nodes = nodes
        self.down: set[int] = set()

    @classmethod
    @contextmanager
    def running(cls, directory: Path, settings: Mapping[str, str]) -> Iterator[Cluster]:
        """Of the newest version, each a broker and a controller."""
        nodes = start_kafka_cluster(directory, settings=settings)
        try:
            yield cls(nodes)
        finally:
            nodes.kill()

    @classmethod
    @contextmanager
    def running_with_zookeeper(
        cls, directory: Path, settings: Mapping[str, str]
    ) -> Iterator[Cluster]:
        """Of the last version that works with ZooKeeper."""
        with running_zookeeper() as zookeeper:
            nodes = start_old_kafka_cluster(directory, zookeeper.address, settings=settings)
            try:
                yield cls(nodes)
            finally:
                nodes.kill()

    @property
    def bootstrap(self) -> str:
        return self._nodes.bootstrap

    def data(self, broker: int) -> Path:
        return self._nodes.nodes[broker - 1].data

    def start(self, broker: int) -> None:
        self._nodes.start_again(broker - 1)
        self.down.discard(broker)

    def stop(self, broker: int) -> None:
        self._nodes.nodes[broker - 1].stop()
        self.down.add(broker)

    def kill(self, broker: int) -> None:
        self._nodes.nodes[broker - 1].kill()
        self.down.add(broker)


def create_topic(
    cluster: Brokers, name: str, replicas: Sequence[Sequence[int]], **config: str | int
) -> None:
    """With a partition for each list of replicas; `min_insync_replicas=2` is a setting."""
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    assignment = [list(brokers) for brokers in replicas]
    topic = NewTopic(name, len(replicas), replica_assignment=assignment, config=settings)
    client = admin(cluster)  # kept until the answer is there
    client.create_topics([topic])[name].result(PATIENCE_SECONDS)
    wait_until(lambda: leaders(cluster, name) == [brokers[0] for brokers in replicas])


def admin(cluster: Brokers) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def leaders(cluster: Brokers, topic: str) -> list[int]:
    return [partition.leader for partition in _partitions(cluster, topic)]


def in_sync(cluster: Brokers, topic: str) -> list[set[int]]:
    return [set(partition.isrs) for partition in _partitions(cluster, topic)]


def _partitions(cluster: Brokers, topic: str) -> list[Any]:
    metadata = admin(cluster).list_topics(topic, timeout=PATIENCE_SECONDS)
    partitions = metadata.topics[topic].partitions
    return [partitions[index] for index in sorted(partitions)]


def await_in_sync(cluster: Brokers, topic: str, *brokers: int) -> None:
    """Until these, and no others, are the in-sync replicas of each partition, and all brokers know
    it: the leader may learn it last."""
    addresses = parse_addresses(cluster.bootstrap)
    wait_until(lambda: all(_has_in_sync(address, topic, brokers) for address in addresses))


def _has_in_sync(address: tuple[str, int], topic: str, brokers: Sequence[int]) -> bool:
    """What this broker says; True if it is down."""
    try:
        with Connection(address, timeout_seconds=PATIENCE_SECONDS) as connection:
            (found,) = connection.call("metadata", {"topics": [{"name": topic}]}).topics
    except ConnectionRefusedError:
        return True
    except OSError:  # it starts or stops
        return False
    return bool(found.partitions) and all(
        set(it.isr_nodes) == set(brokers) for it in found.partitions
    )


def produce(
    cluster: Brokers, topic: str, values: Sequence[bytes], partition: int = 0, **config: object
) -> list[KafkaError | None]:
    """With acks=all, unless a setting such as `acks=1` says otherwise. The errors, in order."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "acks": "all", **settings}
    )
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        errors.append(error)

    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return errors


def log_bytes(cluster: Brokers, broker: int, topic: str, partition: int = 0) -> bytes:
    """All segments of a replica. Where one ends and the next one begins is its own affair."""
    segments = sorted((cluster.data(broker) / f"{topic}-{partition}").glob("*.log"))
    return b"".join(segment.read_bytes() for segment in segments)


def await_equal_replicas(
    cluster: Brokers, topic: str, partition: int = 0, brokers: Sequence[int] = BROKERS
) -> bytes:
    """Wait until the replicas have the same bytes, and return them."""

    def replicas() -> set[bytes]:
        return {log_bytes(cluster, broker, topic, partition) for broker in brokers}

    wait_until(lambda: len(replicas()) == 1)
    (content,) = replicas()
    return content
