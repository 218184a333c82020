"""What tests of capture share: a PostgreSQL server with logical decoding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.capture.source import Source, open_source
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the tests of a process; each test has a database of its own."""
    try:
        server = start_postgres("fsync=off", "wal_level=logical", "max_wal_senders=20")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


@pytest.fixture
def source(postgres: PostgresServer) -> Iterator[Source]:
    """A database of its own, whose changes can be read."""
    with open_source(postgres.new_database()) as opened:
        yield opened
