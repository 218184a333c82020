"""Topics with known records, for the tests of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.client.offsets import log_bounds
from millstream.client.topics import NewTopic, create_topics
from millstream.query.fetching import Source
from millstream.query.ranges import ScanRange
from millstream.testing.pytest_plugin import SharedBroker

START_MS = 1_700_000_000_000
KEEP = {"retention.ms": "-1"}  # the records are old


class Sent(NamedTuple):
    """A record to produce."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int = START_MS
    headers: Sequence[tuple[str, bytes | None]] = ()


def make_topic(
    millstream: SharedBroker,
    records: Iterable[Sent] = (),
    *,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    client: Mapping[str, object] | None = None,
) -> str:
    """The name of a new topic with these records."""
    name = millstream.unique_topic("query")
    with Cluster(millstream.bootstrap_servers) as cluster:
        create_topics(cluster, [NewTopic(name, partitions, {**KEEP, **(settings or {})})])
    produce(millstream.bootstrap_servers, name, records, client)
    return name


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[Sent],
    client: Mapping[str, object] | None = None,
) -> None:
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 20, **(client or {})}
    producer = Producer(settings)
    for it in records:
        producer.produce(
            topic,
            value=it.value,
            key=it.key,
            partition=it.partition,
            timestamp=it.timestamp_ms,
            headers=list(it.headers),
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def source_of(cluster: Cluster, topic: str, *, read_committed: bool = True) -> Source:
    return Source(topic, cluster.topic(topic).id, read_committed)


def all_ranges(
    cluster: Cluster, topic: str, *, read_committed: bool = True
) -> tuple[ScanRange, ...]:
    places = [(topic, it.number) for it in cluster.topic(topic).partitions]
    bounds = log_bounds(cluster, places, read_committed=read_committed)
    return tuple(ScanRange(number, *bounds[topic, number]) for _, number in places)
