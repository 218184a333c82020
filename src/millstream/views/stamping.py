"""What a writer of views does beside writing rows: list the views, and stamp every batch.

All of it happens on the writer's connection: the listing in a transaction of its own before the
first batch, stamps in the transaction of the batch. A reader sees the rows and the stamp of a batch
together, or neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millstream.connect.tables.postgres_rows import CREATION_LOCK
from millstream.connect.tables.postgres_tables import table_name
from millstream.connect.tables.schema import Layout, quote
from millstream.connect.tables.spec import PROGRESS_TABLE, STAMPS_TABLE, VIEWS_TABLE, TableSpec
from millstream.errors import ConfigError, Superseded, ViewError
from millstream.views.generations import RETIRED, has_reached, serving_writer
from millstream.views.history import (
    SUFFIX,
    postgres_history,
    postgres_triggers,
    sqlite_history,
    sqlite_triggers,
)
from millstream.views.spec import NUMBER, Stamp, ViewEntry

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


class Stamps(ABC):
    """The views of one generation of a query, in a transaction of its writer."""

    mark: str  # of a parameter

    def __init__(
        self, query: str, views: Sequence[tuple[str, Layout, int]], writer: str | None = None
    ) -> None:
        """`views` are names, tables, and how many stamps each keeps; `writer` is the name of the
        generation, which has stamps of its own."""
        self._query = query
        self._writer = writer or query
        self._views = views
        self._entries: list[ViewEntry] = []

    def list_views(self, connection: Any) -> None:
        """Create what is missing, and replace the listing. A generation that is being built is
        listed by its own name, where readers do not look."""
        for statement in CREATE_TABLES:
            connection.execute(statement)
        serving = serving_writer(connection, self.mark, self._query)
        place = self._query if serving in (None, self._writer) else self._writer
        entries = [self._prepare(connection, place, *it) for it in self._views]
        self._unlist_others(connection, {it.table for it in entries})
        connection.execute(_CLEAR + self.mark, (place,))
        for it in entries:
            statement = _LIST + f"({self.mark}, {self.mark}, {self.mark})"
            connection.execute(statement, (place, it.view, it.encode()))
        self._entries = entries

    def _unlist_others(self, connection: Any, tables: Collection[str]) -> None:
        """A table that was dropped, and created again for this query, is no view of the query that
        it belonged to before."""
        statement = f"SELECT query, view, document FROM {VIEWS_TABLE}"
        for query, view, document in connection.execute(statement).fetchall():
            try:
                entry = ViewEntry.decode(document)
            except ViewError:
                continue  # of another version of Millstream
            if entry.table in tables and entry.writer != self._writer:
                connection.execute(
                    f"DELETE FROM {VIEWS_TABLE} WHERE query = {self.mark} AND view = {self.mark}",
                    (query, view),
                )

    @classmethod
    def view_writer(cls, connection: Any, table: TableSpec) -> str | None:
        """The query that has listed a table as one of its views; None if it is no view, as a table
        that was dropped and created again."""
        name = cls._listed_name(connection, table)
        if name is None:
            return None
        for (document,) in connection.execute(f"SELECT document FROM {VIEWS_TABLE}").fetchall():
            with suppress(ViewError):  # of another version of Millstream
                entry = ViewEntry.decode(document)
                if entry.table.lower() == name.lower():
                    return entry.writer
        return None

    @staticmethod
    @abstractmethod
    def _listed_name(connection: Any, table: TableSpec) -> str | None:
        """The name of a table in the listing; None if it has no triggers for a history."""

    @abstractmethod
    def _prepare(
        self, connection: Any, place: str, view: str, layout: Layout, keeps: int
    ) -> ViewEntry:
        """Create the history of a view, unless it is there; `place` is where the view is listed."""

    def check(self, connection: Any) -> None:
        """Raises `Superseded` if another generation has taken the place of this one. Called when
        the progress of the writer is locked."""
        serving = serving_writer(connection, self.mark, self._query)
        if serving in (None, self._writer):
            return
        built = None  # the listing by the name of the first generation is that of readers
        if self._writer != self._query:
            built = serving_writer(connection, self.mark, self._writer)
        if built is None:
            raise Superseded(
                f"the views of {self._query} are written by {serving} now, and not by "
                f"{self._writer}: nothing of this batch is written"
            )

    def begin(self, connection: Any, offsets: str | None, ids: str | None) -> None:
        """Stamp the batch, before its rows are written. If it brings the views of this generation
        to where those are that readers read, list them instead."""
        mark = self.mark
        serving = serving_writer(connection, mark, self._query)
        last = self._last(connection, self._writer)
        values = (self._writer, last + 1, offsets, ids)
        connection.execute(_INSERT + f"({mark}, {mark}, {mark}, {mark})", values)
        for it in self._entries:
            connection.execute(f"DELETE FROM {it.history} WHERE {NUMBER} <= {_oldest(last, it)}")
        oldest = min((_oldest(last, it) for it in self._entries), default=last)
        connection.execute(_TRIM + f"{mark} AND number < {oldest}", (self._writer,))
        if serving is not None and serving != self._writer:
            mine = Stamp.parse(self._query, last + 1, offsets, ids)
            if self._has_reached(connection, mine, serving):
                self._lock(connection, serving)
                if self._has_reached(connection, mine, serving):
                    self._replace(connection, serving)

    @abstractmethod
    def _lock(self, connection: Any, writer: str) -> None:
        """Until the end of the transaction, `writer` stamps nothing, and nothing is listed."""

    def _replace(self, connection: Any, serving: str) -> None:
        """Show readers the views of this generation in place of those of the serving one."""
        statement = f"UPDATE {VIEWS_TABLE} SET query = {self.mark} WHERE query = {self.mark}"
        connection.execute(statement, (serving + RETIRED, self._query))
        connection.execute(statement, (self._query, self._writer))

    def _has_reached(self, connection: Any, mine: Stamp, writer: str) -> bool:
        """Whether a stamp has seen what the newest one of another generation has seen."""
        found = connection.execute(
            f"SELECT number, offsets, ids FROM {STAMPS_TABLE} WHERE query = {self.mark} "
            "ORDER BY number DESC LIMIT 1",
            (writer,),
        ).fetchone()
        return found is None or has_reached(mine, Stamp.parse(self._query, *found))

    def _last(self, connection: Any, writer: str) -> int:
        ((found,),) = connection.execute(_LAST + self.mark, (writer,)).fetchall()
        return int(found)

    def _since(self, connection: Any, place: str, view: str) -> int | None:
        """None if the view is new, or another version of Millstream has listed it."""
        found = connection.execute(
            f"SELECT document FROM {VIEWS_TABLE} WHERE query = {self.mark} AND view = {self.mark}",
            (place, view),
        ).fetchone()
        try:
            return None if found is None else ViewEntry.decode(found[0]).since
        except ViewError:
            return None

    def forget(self, connection: Any) -> None:
        """The rows no longer stand for the offsets of earlier stamps."""
        connection.execute(_TRIM + self.mark, (self._writer,))
        for it in self._entries:
            connection.execute(f"DELETE FROM {it.history}")


class SqliteStamps(Stamps):
    """In a SQLite file, which has one writer at a time."""

    mark = "?"

    def _lock(self, connection: Any, writer: str) -> None:
        """The transaction has the file to itself."""

    @staticmethod
    def _listed_name(connection: Any, table: TableSpec) -> str | None:
        found = connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = ? COLLATE NOCASE",
            (f"{table.name}__insert",),
        ).fetchone()
        return None if found is None else f"main.{quote(table.name)}"

    def _prepare(
        self, connection: Any, place: str, view: str, layout: Layout, keeps: int
    ) -> ViewEntry:
        table = layout.table.name
        history = quote(table + SUFFIX)
        columns = [it.name for it in layout.columns]
        found = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({history})")][2:]
        triggers = sqlite_triggers(table, self._writer, layout.columns, layout.key)
        known = dict(
            connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?",
                (table,),
            )
        )
        is_same = found == columns and all(known.get(name) == it for name, it in triggers.items())
        since = self._since(connection, place, view)
        if not is_same:  # new, or changed since: what it has kept until now is no use
            connection.execute(f"DROP TABLE IF EXISTS {history}")
            for statement in sqlite_history(table, layout.columns, layout.key):
                connection.execute(statement)
            for name, statement in triggers.items():
                connection.execute(f"DROP TRIGGER IF EXISTS {quote(name)}")
                connection.execute(statement)
            since = None
        if since is None:
            since = self._last(connection, self._writer)
        return ViewEntry(
            view, f"main.{quote(table)}", f"main.{history}", layout.table.key, layout.columns,
            keeps, since, self._writer,
        )  # fmt: skip


class PostgresStamps(Stamps):
    """In a PostgreSQL database. Views are listed in a transaction that holds `CREATION_LOCK`."""

    mark = "%s"

    def begin(self, connection: Any, offsets: str | None, ids: str | None) -> None:
        super().begin(connection, offsets, ids)
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._query))

    def _lock(self, connection: Any, writer: str) -> None:
        connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
        connection.execute(f"SELECT 1 FROM {PROGRESS_TABLE} WHERE query = %s FOR UPDATE", (writer,))

    @staticmethod
    def _listed_name(connection: Any, table: TableSpec) -> str | None:
        name = table_name(table)
        found = connection.execute(
            "SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) "
            "AND tgname = 'millstream_insert'",
            (name,),
        ).fetchone()
        return None if found is None else _qualified(connection, name)[0]

    def _prepare(
        self, connection: Any, place: str, view: str, layout: Layout, keeps: int
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
        since = self._since(connection, place, view)
        if [it for (it,) in found] != columns or triggers != (3,):
            connection.execute(f"DROP TABLE IF EXISTS {history}")
            for statement in postgres_history(table, history, layout.columns, layout.key):
                connection.execute(statement)
            since = None
        for statement in postgres_triggers(
            table, history, stamps, self._writer, layout.columns, layout.key
        ):
            connection.execute(statement)
        if since is None:
            since = self._last(connection, self._writer)
        return ViewEntry(
            view, table, history, layout.table.key, layout.columns, keeps, since, self._writer
        )


def _oldest(last: int, entry: ViewEntry) -> int:
    """The oldest stamp that the view can be read at, when the next batch is there."""
    return last + 1 - entry.keeps


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
