"""Metrics of several brokers: sums over all of them are right."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.broker.workers.supervisor import Supervisor
from millstream.config.broker import BrokerConfig
from tests.broker.metrics.scraping import Metrics, scrape
from tests.peers.patience import PATIENCE_SECONDS

PARTITIONS = 4


def work(bootstrap: str) -> None:
    """40 records in four partitions, two per worker; a group has read 3 of each."""
    placed = [[index % 2 + 1] for index in range(PARTITIONS)]
    topic = NewTopic("orders", num_partitions=PARTITIONS, replica_assignment=placed)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])["orders"].result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(40):
        producer.produce("orders", b"x", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    offsets = [TopicPartition("orders", index, 3) for index in range(PARTITIONS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def total(found: list[Metrics], name: str, **labels: object) -> float:
    return sum(it.sum(name, **labels) for it in found)


@pytest.mark.timeout(300)
def test_each_worker_serves_what_it_leads_and_coordinates(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "millstream.metrics.listener": "127.0.0.1:0",
        "offsets.topic.num.partitions": 2,
    }

    async def scenario() -> list[Metrics]:
        supervisor = Supervisor(BrokerConfig.from_values(settings), 2)
        await supervisor.start()
        try:
            await asyncio.to_thread(work, supervisor.bootstrap_servers)
            urls = [f"http://{it.metrics_address}/metrics" for it in supervisor.workers]
            return [await asyncio.to_thread(scrape, url) for url in urls]
        finally:
            await supervisor.stop()

    found = asyncio.run(scenario())
    assert len(found) == 2
    per_topic = "kafka_server_brokertopicmetrics_messagesin_total"
    assert [it.value(per_topic, topic="orders") for it in found] == [20, 20]
    assert total(found, "kafka_topic_partition_current_offset", topic="orders") == 40
    place = {"consumergroup": "billing", "topic": "orders"}
    assert total(found, "kafka_consumergroup_current_offset", **place) == 12
    assert total(found, "kafka_consumergroup_lag", **place) == 28
    assert total(found, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert total(found, "kafka_brokers") == 2
    assert total(found, "kafka_topic_partitions", topic="orders") == PARTITIONS
    assert total(found, "kafka_topic_partition_replicas", topic="orders") == PARTITIONS
    assert total(found, "kafka_server_replicamanager_leadercount") == total(
        found, "kafka_controller_kafkacontroller_globalpartitioncount"
    )
