"""The servers that pipelines are killed beside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.cache import PeerMissing
from tests.peers.impatient import start_impatient
from tests.peers.postgres import PostgresServer, start_postgres
from tests.peers.servers import Server


@pytest.fixture(
    scope="module",
    params=["millstream", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    running = start_impatient(request.param, tmp_path_factory.mktemp("exactly-once"))
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
