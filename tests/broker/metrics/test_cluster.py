"""Counts of the cluster, served by one broker of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from millstream.broker.metrics import cluster
from millstream.coordination.cluster import ClusterImage, PartitionImage, TopicImage
from millstream.metrics.exposition import render
from tests.broker.metrics.scraping import Metrics
from tests.broker.serving import serving

CONTROLLER = "kafka_controller_kafkacontroller"


def image() -> ClusterImage:
    partitions = (
        PartitionImage((1, 2), (1, 2), 2, 0, 0),
        PartitionImage((1, 2), (2,), 2, 0, 0),
        PartitionImage((2,), (2,), -1, 0, 0),
    )
    topic = TopicImage('we"ird', uuid4(), partitions)
    return ClusterImage(topics={topic.name: topic})


def test_the_controller_counts_the_whole_cluster() -> None:
    families = (*cluster._controller_families(image(), True),)
    found = Metrics("".join(render(families)))
    assert found.value(f"{CONTROLLER}_activecontrollercount") == 1
    assert found.value(f"{CONTROLLER}_offlinepartitionscount") == 1
    assert found.value(f"{CONTROLLER}_globalpartitioncount") == 3
    assert found.value(f"{CONTROLLER}_preferredreplicaimbalancecount") == 3
    others = Metrics("".join(render(cluster._controller_families(image(), False))))
    assert {it.value for it in others.samples} == {0.0}


def test_exporters_names_have_topic_and_partition() -> None:
    found = Metrics("".join(render(cluster._exporter_families(image(), with_partitions=True))))
    prefix = "kafka_topic_partition"
    at = {"topic": 'we"ird', "partition": 1}
    assert found.value(f"{prefix}_in_sync_replica", **at) == 1
    assert found.value(f"{prefix}_under_replicated_partition", **at) == 1
    assert found.value(f"{prefix}_leader_is_preferred", **at) == 0
    assert found.value(f"{prefix}_leader", **at | {"partition": 2}) == -1


def test_a_single_broker_is_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert cluster.is_controller(server.services)
            families = cluster.families(server.services, with_partitions=False)
            found = Metrics("".join(render(families)))
            assert found.value("kafka_brokers") == 1
            host, port = server.addresses[0]
            assert found.value("kafka_broker_info", id=server.id, address=f"{host}:{port}") == 1

    asyncio.run(scenario())
