"""The servers that pipelines are killed beside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.cache import PeerMissing
from tests.peers.kafka import start_kafka
from tests.peers.postgres import PostgresServer, start_postgres
from tests.peers.servers import Server, start_millstream


@pytest.fixture(
    scope="module",
    params=["millstream", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("exactly-once")
    if request.param == "kafka":
        settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
        running = start_kafka(directory, settings)
    else:
        running = start_millstream(directory / "data")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    try:
        running = start_postgres()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield running
    running.remove()
