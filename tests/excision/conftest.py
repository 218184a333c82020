"""A broker with a topic of three partitions, for the tests of excisions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.excision.documents import KEY, Selector, TopicPlan
from millstream.excision.selection import Access, find_topic
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, start_millstream

NUMBERS = itertools.count()
ALICE = Selector(KEY, b"alice")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("excision") / "data"


@pytest.fixture(scope="session")
def server(data: Path) -> Iterator[Server]:
    started = start_millstream(data, {})
    yield started
    started.stop()


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    with Cluster(server.bootstrap) as connected:
        yield connected


@pytest.fixture
def access(server: Server) -> Access:
    return Access(server.bootstrap)


@pytest.fixture
def topic(cluster: Cluster, server: Server) -> str:
    """30 records, every third of alice."""
    name = f"orders-{next(NUMBERS)}"
    create_topics(cluster, [NewTopic(name, 3)])
    fill(server.bootstrap, name)
    return name


def fill(bootstrap: str, topic: str, secret: str = "alice@example.org") -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(30):
        is_alice = number % 3 == 0
        producer.produce(
            topic,
            key="alice" if is_alice else f"user{number}",
            value=f'{{"n": {number}, "email": "{secret if is_alice else "b@example.org"}"}}',
            partition=number % 2,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0


def plan_for(cluster: Cluster, topic: str, access: Access) -> TopicPlan:
    return find_topic(cluster, topic, ALICE, access=access)
