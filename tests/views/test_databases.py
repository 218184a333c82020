"""Databases as readers use them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from millstream.errors import ConfigError, StoreError
from millstream.views.databases import open_database
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.stores.conftest import Database


def test_stores_without_snapshots_are_refused() -> None:
    with pytest.raises(ConfigError, match="redis"):
        open_database("redis://localhost")


def test_file_that_is_missing_is_named_and_not_created(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    with pytest.raises(StoreError, match=r"none\.db"), open_database(f"sqlite:///{file}").session():
        pass
    assert not file.exists()


def test_connections_that_the_server_has_ended_are_replaced(postgres_database: Database) -> None:
    """As after a restart of the server."""
    opened = open_database(postgres_database.url)
    with opened.session() as one, opened.session() as two:
        one.rows("SELECT 1")
        two.rows("SELECT 1")
    postgres_database.run(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with opened.session() as session:
        assert session.rows("SELECT 1") == [(1,)]
    opened.close()


def test_file_that_is_no_database_is_an_error_of_the_store(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    file.write_bytes(b"not a database" * 100)
    database = open_database(f"sqlite:///{file}")
    with database.watch() as watch, pytest.raises(StoreError, match="not a database"):
        watch.wait(0)


def write(file: Path, value: int) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
        connection.execute("INSERT INTO t VALUES (?)", (value,))
    connection.close()


def test_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    """As when an older copy is restored; connections that are kept would read the deleted file."""
    file, older = tmp_path / "shop.db", tmp_path / "older.db"
    write(file, 2)
    write(older, 1)
    opened = open_database(f"sqlite:///{file}")
    with opened.session() as session:
        assert session.rows("SELECT x FROM t") == [(2,)]
    with opened.watch() as watch:
        watch.wait(0)
        older.replace(file)
        watch.wait(PATIENCE_SECONDS)  # returns, because the file is another
        with opened.session() as session:
            assert session.rows("SELECT x FROM t") == [(1,)]
    file.unlink()
    with pytest.raises(StoreError, match=r"shop\.db"), opened.session():
        pass
    opened.close()
