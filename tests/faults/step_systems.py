"""The derived systems of a scene: how each is declared, and the rows that other processes see."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import redis
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.peers.opensearch import OpenSearchServer
from tests.peers.redis import RedisServer

Rows = dict[tuple[str, int], tuple[int, str]]  # version and note by table and id

COLUMNS = 'columns = "id long, version long, note string"'
AT_ONCE = "pause_seconds = 0\n"
PAGE = 5_000
# Systems that are killed, have no tables yet, or are about to be created.
UNREADABLE = (
    psycopg.Error,
    sqlite3.Error,
    redis.RedisError,
    duckdb.Error,
    DeltaError,
    OSError,
)
# As docs/guides/derived.md has it.
ROWS_OF_FILES = """
    WITH changes AS (FROM read_parquet('{}/*/*.parquet', hive_partitioning = false))
    SELECT id, version, note FROM (
        FROM changes
        WHERE __offset > (SELECT coalesce(max(__offset), -1) FROM changes WHERE __op = 't')
        QUALIFY row_number() OVER (PARTITION BY id ORDER BY __offset DESC) = 1
    ) WHERE __op = 'u'
"""


def declaration(
    role: str, directory: Path, database: str, cache: RedisServer | None, search: Any
) -> tuple[str, str, str]:
    """The address, options of the sink, and options of its topics."""
    match role:
        case "table":
            return database, "", COLUMNS
        case "index":
            options = 'fields = ["note"]\nstored = ["id", "version"]'
            return f"fts5:///{directory / 'index.db'}", "", options
        case "file":
            return f"sqlite:///{directory / 'file.db'}", "", COLUMNS
        case "cache":
            assert cache is not None
            return cache.url, "", ""
        case "lake":
            return f"delta:///{directory / 'lake'}", AT_ONCE, COLUMNS
        case "files":
            return f"parquet:///{directory / 'files'}", AT_ONCE, COLUMNS
        case "search":
            return search.url, "", ""
    raise AssertionError(role)


def rows_of_tables(url: str, tables: Sequence[str]) -> Rows:
    with psycopg.connect(url) as connection:
        return {
            (table, id): (version, note)
            for table in tables
            for id, version, note in connection.execute(
                f"SELECT id, version, note FROM {table}"  # type: ignore[arg-type]
            )
        }


def rows_of_index(path: Path, tables: Sequence[str]) -> Rows:
    rows: Rows = {}
    with closing(sqlite3.connect(path)) as connection:
        for table in tables:
            connection.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")
            for id, version, note in connection.execute(f"SELECT id, version, note FROM {table}"):
                rows[table, id] = (version, note)
    return rows


def rows_of_file(path: Path, tables: Sequence[str]) -> Rows:
    with closing(sqlite3.connect(path)) as connection:
        return {
            (table, id): (version, note)
            for table in tables
            for id, version, note in connection.execute(f"SELECT id, version, note FROM {table}")
        }


def rows_of_cache(cache: RedisServer, tables: Sequence[str]) -> Rows:
    rows: Rows = {}
    with redis.Redis(port=cache.port, decode_responses=True) as client:
        for table in tables:
            for key in client.keys(f"{table}:*"):
                stored = client.get(key)
                if stored is not None:  # else it was deleted meanwhile
                    row = json.loads(stored)
                    rows[table, row["id"]] = (row["version"], row["note"])
    return rows


def rows_of_lake(path: Path, tables: Sequence[str]) -> Rows:
    rows: Rows = {}
    for table in tables:
        found = DeltaTable(str(path / table)).to_pyarrow_table().to_pylist()
        for row in found:
            rows[table, row["id"]] = (row["version"], row["note"])
        assert len(found) == sum(it[0] == table for it in rows), "a row is there twice"
    return rows


def rows_of_files(path: Path, tables: Sequence[str]) -> Rows:
    with duckdb.connect() as connection:
        return {
            (table, id): (version, note)
            for table in tables
            for id, version, note in connection.execute(
                ROWS_OF_FILES.format(path / table)
            ).fetchall()
        }


def rows_of_search(server: OpenSearchServer, tables: Sequence[str]) -> Rows:
    rows: Rows = {}
    for table in tables:
        _ask(server, "POST", f"/{table}/_refresh")
        page: list[Any] = [{"sort": None}]
        while page:
            after = page[-1]["sort"]
            body = {"size": PAGE, "sort": ["id"]} | ({"search_after": after} if after else {})
            page = _ask(server, "POST", f"/{table}/_search", body)["hits"]["hits"]
            for row in (it["_source"] for it in page):
                rows[table, row["id"]] = (row["version"], row["note"])
    return rows


def clear_search(server: OpenSearchServer, tables: Sequence[str]) -> None:
    for table in tables:
        for index in _ask(server, "GET", f"/{table}*"):
            _ask(server, "DELETE", f"/{index}")


def _ask(server: OpenSearchServer, method: str, path: str, body: Any = None) -> Any:
    status, answer = server.ask(method, path, body)
    if status >= 300:
        raise OSError(f"the search server answers {status}: {answer}")
    return answer
