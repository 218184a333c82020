"""What tests of stores share: both stores, a server for the tests, and how to look into tables."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.pipelines.stores import Store, open_store
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the tests of a process; each test has a database of its own."""
    try:
        server = start_postgres("fsync=off")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


@dataclass
class Database:
    """A database that a test has to itself."""

    url: str

    def open(self) -> Store:
        return open_store(self.url)

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """As another process sees them."""
        if self.is_sqlite:
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        with psycopg.connect(self.url) as other:
            return other.execute(statement).fetchall()  # type: ignore[arg-type]

    def run(self, statement: str) -> None:
        if self.is_sqlite:
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            with connection:
                connection.execute(statement)
            connection.close()
        else:
            with psycopg.connect(self.url, autocommit=True) as other:
                other.execute(statement)  # type: ignore[arg-type]


def new_database(server: PostgresServer) -> Database:
    name = f"test_{uuid.uuid4().hex[:12]}"
    Database(server.url).run(f"CREATE DATABASE {name}")
    return Database(server.url.removesuffix("postgres") + name)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path}/store.db")
    return new_database(request.getfixturevalue("postgres"))


@pytest.fixture
def postgres_database(postgres: PostgresServer) -> Database:
    return new_database(postgres)


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with database.open() as opened:
        yield opened
