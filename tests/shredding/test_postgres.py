"""Keys in PostgreSQL: a store that cannot be reached, and what is left of a forgotten key."""

from __future__ import annotations

import psycopg
import pytest

from millstream.shredding.postgres import TABLE, PostgresKeys
from millstream.shredding.store import KeyStoreError
from tests.peers.postgres import PostgresServer


def test_unreachable_store_is_named() -> None:
    with pytest.raises(KeyStoreError, match="cannot reach the store of keys"):
        PostgresKeys("postgresql://127.0.0.1:1/keys?connect_timeout=2")


def test_connection_that_broke_is_opened_again(postgres: PostgresServer) -> None:
    keys = PostgresKeys(postgres.url)
    key = keys.current("carol")
    keys.close()
    assert keys.find(key.id) == key
    keys.close()


def test_table_has_no_names(postgres: PostgresServer) -> None:
    keys = PostgresKeys(postgres.url)
    keys.current("dave@example.org")
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(f"select subject from {TABLE}").fetchall()
    assert not any("dave" in row[0] for row in rows)
    keys.close()
