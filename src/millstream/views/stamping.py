"""What a writer of views does beside writing rows: list the views, and stamp every batch.

All of it happens on the writer's connection: the listing in a transaction of its own before the
first batch, stamps in the transaction of the batch. A reader sees the rows and the stamp of a batch
together, or neither.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.connect.tables.postgres_tables import table_name
from millstream.connect.tables.schema import Layout, quote
from millstream.connect.tables.spec import STAMPS_TABLE, VIEWS_TABLE
from millstream.errors import ConfigError, ViewError
from millstream.views.history import (
    SUFFIX,
    postgres_history,
    postgres_triggers,
    sqlite_history,
    sqlite_triggers,
)
from millstream.views.spec import NUMBER, ViewEntry

if TYPE_CHECKING:
    import psycopg

CHANNEL = "millstream_views"  # PostgreSQL notifies its listeners after each batch
_NAME_BYTES_MAX = 40  # in PostgreSQL, the names of the history and its functions are longer

CREATE_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {VIEWS_TABLE} (query TEXT NOT NULL, view TEXT NOT NULL, "
    "document TEXT NOT NULL, PRIMARY KEY (query, view))",
    f"CREATE TABLE IF NOT EXISTS {STAMPS_TABLE} (query TEXT NOT NULL, number BIGINT NOT NULL, "
    "offsets TEXT, ids TEXT, PRIMARY KEY (query, number))",
)
_LAST = f"SELECT coalesce(max(number), 0) FROM {STAMPS_TABLE} WHERE query = "
_INSERT = f"INSERT INTO {STAMPS_TABLE} (query, number, offsets, ids) VALUES "
_TRIM = f"DELETE FROM {STAMPS_TABLE} WHERE query = "
_LIST = f"INSERT INTO {VIEWS_TABLE} (query, view, document) VALUES "
_CLEAR = f"DELETE FROM {VIEWS_TABLE} WHERE query = "


class SqliteStamps:
    """The views of one query in a SQLite file."""

    def __init__(self, query: str, views: Sequence[tuple[str, Layout, int]]) -> None:
        """`views` are names, tables, and how many stamps each keeps."""
        self._query = query
        self._views = views
        self._entries: list[ViewEntry] = []

    def list_views(self, connection: sqlite3.Connection) -> None:
        """Within a transaction: create what is missing, and replace the listing."""
        for statement in CREATE_TABLES:
            connection.execute(statement)
        entries = [self._prepare(connection, *it) for it in self._views]
        connection.execute(_CLEAR + "?", (self._query,))
        for it in entries:
            connection.execute(_LIST + "(?, ?, ?)", (self._query, it.view, it.encode()))
        self._entries = entries

    def _prepare(
        self, connection: sqlite3.Connection, view: str, layout: Layout, keeps: int
    ) -> ViewEntry:
        table = layout.table.name
        history = quote(table + SUFFIX)
        columns = [it.name for it in layout.columns]
        found = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({history})")][2:]
        triggers = sqlite_triggers(table, self._query, layout.columns, layout.key)
        known = dict(
            connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?",
                (table,),
            )
        )
        is_same = found == columns and all(known.get(name) == it for name, it in triggers.items())
        since = _since(connection.execute(_entry("?"), (self._query, view)).fetchone())
        if not is_same:  # new, or changed since: what it has kept until now is no use
            connection.execute(f"DROP TABLE IF EXISTS {history}")
            for statement in sqlite_history(table, layout.columns, layout.key):
                connection.execute(statement)
            for name, statement in triggers.items():
                connection.execute(f"DROP TRIGGER IF EXISTS {quote(name)}")
                connection.execute(statement)
            since = None
        if since is None:
            ((since,),) = connection.execute(_LAST + "?", (self._query,))
        return ViewEntry(
            view, f"main.{quote(table)}", f"main.{history}", layout.table.key, layout.columns,
            keeps, since,
        )  # fmt: skip

    def begin(self, connection: sqlite3.Connection, offsets: str | None, ids: str | None) -> None:
        """Stamp the batch, before its rows are written."""
        ((last,),) = connection.execute(_LAST + "?", (self._query,))
        connection.execute(_INSERT + "(?, ?, ?, ?)", (self._query, last + 1, offsets, ids))
        for it in self._entries:
            connection.execute(f"DELETE FROM {it.history} WHERE {NUMBER} <= {_oldest(last, it)}")
        oldest = min((_oldest(last, it) for it in self._entries), default=last)
        connection.execute(_TRIM + f"? AND number < {oldest}", (self._query,))

    def forget(self, connection: sqlite3.Connection) -> None:
        """The rows no longer stand for the offsets of earlier stamps."""
        connection.execute(_TRIM + "?", (self._query,))
        for it in self._entries:
            connection.execute(f"DELETE FROM {it.history}")


class PostgresStamps:
    """The views of one query in a PostgreSQL database."""

    def __init__(self, query: str, views: Sequence[tuple[str, Layout, int]]) -> None:
        self._query = query
        self._views = views
        self._entries: list[ViewEntry] = []

    def list_views(self, connection: psycopg.Connection) -> None:
        """Within a transaction that holds the lock of those who create tables."""
        for statement in CREATE_TABLES:
            connection.execute(statement)
        entries = [self._prepare(connection, *it) for it in self._views]
        connection.execute(_CLEAR + "%s", (self._query,))
        for it in entries:
            values = (self._query, it.view, it.encode())
            connection.execute(_LIST + "(%s, %s, %s)", values)
        self._entries = entries

    def _prepare(
        self, connection: psycopg.Connection, view: str, layout: Layout, keeps: int
    ) -> ViewEntry:
        name = layout.table.name.rpartition(".")[2]
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise ConfigError(
                f"view {view}: its table {name} has a name of more than {_NAME_BYTES_MAX} bytes, "
                "which leaves no room in PostgreSQL for the names of its history: shorten it"
            )
        table, schema = _qualified(connection, table_name(layout.table))
        history = f"{schema}.{quote(name + SUFFIX)}"
        stamps, _ = _qualified(connection, STAMPS_TABLE)
        columns = [it.name for it in layout.columns]
        found = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 2 "
            "AND NOT attisdropped ORDER BY attnum",
            (history,),
        ).fetchall()
        triggers = connection.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(%s) "
            "AND tgname LIKE 'millstream\\_%%'",
            (table,),
        ).fetchone()
        statement = _entry("%s")
        since = _since(connection.execute(statement, (self._query, view)).fetchone())
        if [it for (it,) in found] != columns or triggers != (3,):
            connection.execute(f"DROP TABLE IF EXISTS {history}")
            for statement in postgres_history(table, history, layout.columns, layout.key):
                connection.execute(statement)
            since = None
        for statement in postgres_triggers(
            table, history, stamps, self._query, layout.columns, layout.key
        ):
            connection.execute(statement)
        if since is None:
            since = _number(connection.execute(_LAST + "%s", (self._query,)).fetchone())
        return ViewEntry(view, table, history, layout.table.key, layout.columns, keeps, since)

    def begin(self, connection: psycopg.Connection, offsets: str | None, ids: str | None) -> None:
        """Stamp the batch, before its rows are written; listeners are notified when it commits."""
        last = _number(connection.execute(_LAST + "%s", (self._query,)).fetchone())
        values = (self._query, last + 1, offsets, ids)
        connection.execute(_INSERT + "(%s, %s, %s, %s)", values)
        for it in self._entries:
            connection.execute(f"DELETE FROM {it.history} WHERE {NUMBER} <= {_oldest(last, it)}")
        oldest = min((_oldest(last, it) for it in self._entries), default=last)
        connection.execute(_TRIM + f"%s AND number < {oldest}", (self._query,))
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._query))

    def forget(self, connection: psycopg.Connection) -> None:
        """The rows no longer stand for the offsets of earlier stamps."""
        connection.execute(_TRIM + "%s", (self._query,))
        for it in self._entries:
            connection.execute(f"DELETE FROM {it.history}")


def _oldest(last: int, entry: ViewEntry) -> int:
    """The oldest stamp that the view can be read at, when the next batch is there."""
    return last + 1 - entry.keeps


def _entry(mark: str) -> str:
    return f"SELECT document FROM {VIEWS_TABLE} WHERE query = {mark} AND view = {mark}"


def _since(found: Any) -> int | None:
    """None if the view is new, or another version of Millstream has listed it."""
    try:
        return None if found is None else ViewEntry.decode(found[0]).since
    except ViewError:
        return None


def _number(found: Any) -> int:
    assert found is not None
    return int(found[0])


def _qualified(connection: psycopg.Connection, table: str) -> tuple[str, str]:
    """The name of a table with its schema, and the schema; both are quoted."""
    found = connection.execute(
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE pg_class.oid = to_regclass(%s)",
        (table,),
    ).fetchone()
    assert found is not None
    schema, name = quote(found[0]), quote(found[1])
    return f"{schema}.{name}", schema
