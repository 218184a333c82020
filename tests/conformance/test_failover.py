"""One story on clusters of three: ours, Apache Kafka's, and that of Apache's last version with
ZooKeeper. Leaders are killed and stopped, and replicas are missing.

All brokers run at the beginning and at the end of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.conformance.brokers import unique
from tests.conformance.clusters import (
    BROKERS,
    ApacheCluster,
    Cluster,
    MillstreamCluster,
    admin,
    await_equal_replicas,
    await_in_sync,
    create_topic,
    in_sync,
    leaders,
    produce,
)
from tests.peers.cache import PeerMissing
from tests.peers.patience import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(900)]

SESSION_MS = "2000"
SETTINGS = {"auto.leader.rebalance.enable": "false", "offsets.topic.num.partitions": "3"}
WITH_ZOOKEEPER = SETTINGS | {"zookeeper.session.timeout.ms": SESSION_MS}
WITH_CONTROLLERS = SETTINGS | {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": SESSION_MS,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=pytest.mark.xdist_group(f"failover-{kind}"))
        for kind in ("millstream", "apache-kafka", "apache-kafka-zookeeper")
    ],
)
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "millstream":
        running = MillstreamCluster.running(directory, WITH_ZOOKEEPER)
    elif request.param == "apache-kafka":
        running = ApacheCluster.running(directory, WITH_CONTROLLERS)
    else:
        running = ApacheCluster.running_with_zookeeper(directory, WITH_ZOOKEEPER)
    try:
        with running as cluster:
            wait_until(lambda: known_brokers(cluster) == set(BROKERS))
            yield cluster
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    yield shared_cluster
    for broker in sorted(shared_cluster.down):
        shared_cluster.start(broker)
    wait_until(lambda: known_brokers(shared_cluster) == set(BROKERS))


def known_brokers(cluster: Cluster) -> set[int]:
    return set(admin(cluster).list_topics(timeout=PATIENCE_SECONDS).brokers)


class Writer:
    """An idempotent producer with acks=all, which numbers its records."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._sent = 0
        self.acknowledged: list[int] = []
        self.errors: list[KafkaError] = []

    def write_until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self._producer.produce(self._topic, b"%d" % self._sent, on_delivery=self._delivered)
            self._sent += 1
            self._producer.poll(0.002)
            return condition()

        wait_until(holds)

    def finish(self) -> list[int]:
        """All numbers, which are acknowledged."""
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        assert self.errors == []
        assert self.acknowledged == list(range(self._sent))
        return self.acknowledged

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged.append(int(message.value() or b""))


def consumer_of(cluster: Cluster) -> Consumer:
    """It commits nothing: the topic of offsets cannot be created while brokers are missing."""
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": unique("group"),
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def read(cluster: Cluster, topic: str, count: int) -> list[int]:
    """The numbers that consumers see, from the first one on."""
    consumer = consumer_of(cluster)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def is_complete() -> bool:
        messages = consumer.consume(1_000, 0.5)
        found.extend(int(it.value() or b"") for it in messages if it.error() is None)
        return len(found) >= count

    wait_until(is_complete)
    consumer.close()
    return found


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_records_are_acknowledged_once_although_their_leader_is_lost(
    cluster: Cluster, way: str
) -> None:
    topic = unique("topic")
    create_topic(cluster, topic, [[1, 2, 3]], min_insync_replicas=2)
    writer = Writer(cluster, topic)
    writer.write_until(lambda: len(writer.acknowledged) > 300)
    cluster.kill(1) if way == "kill" else cluster.stop(1)
    writer.write_until(lambda: len(writer.acknowledged) > 1_000)
    numbers = writer.finish()
    assert leaders(cluster, topic)[0] in (2, 3)
    assert in_sync(cluster, topic) == [{2, 3}]
    assert read(cluster, topic, len(numbers)) == numbers
    cluster.start(1)
    await_in_sync(cluster, topic, *BROKERS)
    await_equal_replicas(cluster, topic)
    assert leaders(cluster, topic)[0] in (2, 3), "a returning broker follows"


def test_partition_with_too_few_replicas_refuses_records(cluster: Cluster) -> None:
    """What is acknowledged by the leader alone is not visible before there are enough again."""
    topic = unique("topic")
    create_topic(cluster, topic, [[1, 2]], min_insync_replicas=2)
    assert produce(cluster, topic, [b"0"]) == [None]
    cluster.kill(2)
    await_in_sync(cluster, topic, 1)
    (error,) = produce(cluster, topic, [b"refused"], retries=0)
    assert error is not None
    assert error.code() == KafkaError.NOT_ENOUGH_REPLICAS
    assert produce(cluster, topic, [b"1"], acks=1) == [None]
    assert high_watermark(cluster, topic) == 1
    cluster.start(2)
    await_in_sync(cluster, topic, 1, 2)
    assert produce(cluster, topic, [b"2"]) == [None]
    assert read(cluster, topic, 3) == [0, 1, 2]
    await_equal_replicas(cluster, topic, brokers=(1, 2))


def high_watermark(cluster: Cluster, topic: str) -> int:
    consumer = consumer_of(cluster)
    place = TopicPartition(topic, 0)
    _, high = consumer.get_watermark_offsets(place, timeout=PATIENCE_SECONDS)
    consumer.close()
    return int(high)


def test_replica_that_was_not_in_sync_does_not_lead(cluster: Cluster) -> None:
    """Broker 2 does not have the second record: the partition waits for broker 1."""
    topic = unique("topic")
    create_topic(cluster, topic, [[1, 2]], min_insync_replicas=1)
    assert produce(cluster, topic, [b"0"]) == [None]
    cluster.kill(2)
    await_in_sync(cluster, topic, 1)
    assert produce(cluster, topic, [b"1"]) == [None]
    cluster.kill(1)
    cluster.start(2)
    wait_until(lambda: known_brokers(cluster) == {2, 3} and leaders(cluster, topic) == [-1])
    (error,) = produce(cluster, topic, [b"refused"], message_timeout_ms=3_000)
    assert error is not None
    assert leaders(cluster, topic) == [-1]
    cluster.start(1)
    wait_until(lambda: leaders(cluster, topic) == [1])
    await_in_sync(cluster, topic, 1, 2)
    assert produce(cluster, topic, [b"2"]) == [None]
    assert read(cluster, topic, 3) == [0, 1, 2]
    await_equal_replicas(cluster, topic, brokers=(1, 2))
