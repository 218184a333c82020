"""Stores of keys: a directory, and PostgreSQL if it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.shredding.opening import open_keys
from millstream.shredding.store import KeyStore
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = start_postgres("fsync=off")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(params=["directory", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "keys")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url


@pytest.fixture
def keys(address: str) -> KeyStore:
    return open_keys(address)
