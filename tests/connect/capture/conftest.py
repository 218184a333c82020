"""What tests of capture share: a PostgreSQL server with logical decoding, and a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millstream.broker.embedded import Broker
from tests.connect.capture.harness import Setup
from tests.connect.capture.source import Source, open_source
from tests.peers.postgres import PostgresServer, serve_postgres

SETTINGS = ("fsync=off", "wal_level=logical", "max_replication_slots=50", "max_wal_senders=50")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the tests of a process; each test has a database of its own."""
    yield from serve_postgres(*SETTINGS)


@pytest.fixture
def source(postgres: PostgresServer) -> Iterator[Source]:
    """A database of its own, whose changes can be read."""
    with open_source(postgres.new_database()) as opened:
        yield opened


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker.start(in_process=False) as running:
        yield running


@pytest.fixture
def setup(postgres: PostgresServer, broker: Broker) -> Iterator[Setup]:
    """A database of its own, and the settings of its capture."""
    made = new_setup(postgres, broker.bootstrap_servers)
    yield made
    made.close()


def new_setup(postgres: PostgresServer, bootstrap: str) -> Setup:
    return Setup(postgres.new_database(), bootstrap, f"c{uuid.uuid4().hex[:8]}")
