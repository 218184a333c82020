"""A real cluster for the functions that the command line and the console share: Millstream, and in
slow runs Apache Kafka too. Tests use fresh names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from millstream.client.cluster import Cluster
from tests.conformance.brokers import SETTINGS
from tests.peers.kafka import start_kafka
from tests.peers.servers import start_millstream

NUMBERS = itertools.count()
KINDS = [
    "millstream",
    pytest.param("apache-kafka", marks=[pytest.mark.slow, pytest.mark.java]),
]


@pytest.fixture(scope="session", params=KINDS)
def bootstrap_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a running broker, shared by all tests."""
    directory = tmp_path_factory.mktemp(request.param)
    start = start_millstream if request.param == "millstream" else start_kafka
    server = start(directory, SETTINGS)
    yield server.bootstrap
    server.kill()  # nothing of it is needed, and a clean stop flushes all that was written


@pytest.fixture
def cluster(bootstrap_servers: str) -> Iterator[Cluster]:
    with Cluster(bootstrap_servers, client_id="admin-tests") as connected:
        yield connected


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"admin-{next(NUMBERS)}"
