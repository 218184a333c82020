"""Metrics of the cluster, from the metadata that all brokers have.

Only the controller serves the counts of the whole cluster, so that a sum over all brokers is right;
others serve 0, or nothing where a series per topic would be repeated. Without a controller (a
single broker, workers), that is the active broker with the lowest id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream.broker.services import Services
from millstream.coordination.cluster import ClusterImage, PartitionImage
from millstream.metrics.exposition import Family, Sample, escape, gauge, labels

NO_LEADER = -1


def is_controller(services: Services) -> bool:
    """Whether this broker serves the metrics of the cluster."""
    metadata = services.metadata
    if metadata.has_controller:
        return metadata.controller_id == services.broker_id
    active = [it.id for it in metadata.image.brokers.values() if it.is_active]
    return not active or min(active) == services.broker_id


def families(services: Services, *, with_partitions: bool) -> Iterator[Family]:
    image = services.metadata.image
    is_chosen = is_controller(services)
    yield from _controller_families(image, is_chosen)
    if is_chosen:
        yield from _exporter_families(image, with_partitions=with_partitions)


def _controller_families(image: ClusterImage, is_chosen: bool) -> Iterator[Family]:
    brokers = image.brokers.values()
    partitions = [it for topic in image.topics.values() for it in topic.partitions]
    for name, help, value in (
        ("activecontrollercount", "Whether this broker is the controller.", 1),
        (
            "offlinepartitionscount",
            "Partitions without a leader.",
            sum(it.leader == NO_LEADER for it in partitions),
        ),
        ("globaltopiccount", "Topics of the cluster.", len(image.topics)),
        ("globalpartitioncount", "Partitions of the cluster.", len(partitions)),
        ("activebrokercount", "Brokers that serve.", sum(not it.fenced for it in brokers)),
        ("fencedbrokercount", "Brokers that do not serve.", sum(it.fenced for it in brokers)),
        (
            "preferredreplicaimbalancecount",
            "Partitions that are not led by their first replica.",
            sum(not _is_preferred(it) for it in partitions),
        ),
        ("metadataerrorcount", "Errors in the metadata log: it would stop the broker.", 0),
    ):
        yield gauge(
            f"kafka_controller_kafkacontroller_{name}",
            f"{help} 0 on brokers that are not the controller.",
            value if is_chosen else 0,
        )


def _is_preferred(partition: PartitionImage) -> bool:
    return bool(partition.replicas) and partition.leader == partition.replicas[0]


def _exporter_families(image: ClusterImage, *, with_partitions: bool) -> Iterator[Family]:
    """The names of kafka_exporter."""
    active = [it for it in image.brokers.values() if not it.fenced]
    yield gauge("kafka_brokers", "Brokers that serve.", len(active))
    yield gauge(
        "kafka_broker_info",
        "The address of each broker.",
        (
            (labels(id=it.id, address=f"{endpoint.host}:{endpoint.port}"), 1)
            for it in active
            for endpoint in it.endpoints[:1]
        ),
    )
    yield gauge(
        "kafka_topic_partitions",
        "Partitions of the topic.",
        ((labels(topic=it.name), len(it.partitions)) for it in image.topics.values()),
    )
    if not with_partitions:
        return
    described: tuple[tuple[str, str, Callable[[PartitionImage], int]], ...] = (
        ("leader", "The id of the leader; -1: none.", lambda it: it.leader),
        ("leader_is_preferred", "Whether the first replica leads.", lambda it: _is_preferred(it)),
        ("replicas", "Replicas of the partition.", lambda it: len(it.replicas)),
        ("in_sync_replica", "In-sync replicas of the partition.", lambda it: len(it.isr)),
        (
            "under_replicated_partition",
            "Whether a replica is not in sync.",
            lambda it: len(it.isr) < len(it.replicas),
        ),
    )
    for name, help, value in described:
        yield gauge(f"kafka_topic_partition_{name}", help, _per_partition(image, value))


def _per_partition(image: ClusterImage, value: Callable[[PartitionImage], int]) -> Iterator[Sample]:
    for topic in image.topics.values():
        name = escape(topic.name)
        for index, partition in enumerate(topic.partitions):
            yield f'{{topic="{name}",partition="{index}"}}', int(value(partition))
