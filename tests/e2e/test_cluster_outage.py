"""All brokers of a cluster are lost at once: the first back leads, the second makes it enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.cluster import ClusterProcesses
from tests.peers.patience import PATIENCE_SECONDS, wait_until

RECORDS = 100


@pytest.mark.slow
@pytest.mark.java
def test_first_brokers_back_have_all_that_was_acknowledged(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.addresses, "log_level": 0})
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(PATIENCE_SECONDS)
        producer = Producer({"bootstrap.servers": cluster.addresses, "acks": "all", "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number)
        assert producer.flush(PATIENCE_SECONDS) == 0
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.brokers[2].start()
        wait_until(lambda: leaders(cluster.brokers[2].address) == {2})
        cluster.brokers[3].start()  # two must be in sync
        assert read(cluster.brokers[2].address) == {b"%d" % number for number in range(RECORDS)}


def leaders(address: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        partitions = admin.list_topics("t", timeout=5).topics["t"].partitions
    except KafkaException:
        return set()
    return {partition.leader for partition in partitions.values()}


def read(address: str) -> set[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", index, 0) for index in range(3)])
    found: set[bytes] = set()

    def has_all() -> bool:
        found.update(it.value() or b"" for it in consumer.consume(100, 0.2) if not it.error())
        return len(found) == RECORDS

    wait_until(has_all)
    consumer.close()
    return found
