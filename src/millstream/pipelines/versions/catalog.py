"""The versions of pipelines in a store: documents, views, tables and progress, in transactions.

Tables, beside those that versions write:

    millstream_versions   pipeline, number, document: see `registry.py`
    millstream_halts      pipeline, token, cut, renewed: what an operator asks for (`halting.py`)
    millstream_runs       query, token, document: what running versions answer
    millstream_shown      name, shown: the table under a view (`postgres_views.py`; PostgreSQL only)

A `Work` is one transaction: everything that an operation changes, or nothing. The pipeline's
document is locked first, then progress, by every process: none waits for another in a circle.

SQLite and PostgreSQL have transactions that include views and tables. Other stores have not, and
are refused.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.connect.tables import sqlite_tables
from millstream.connect.tables.identities import postgres_identity
from millstream.connect.tables.postgres_connection import connect, explained, patiently
from millstream.connect.tables.postgres_rows import CREATION_LOCK
from millstream.connect.tables.schema import quote
from millstream.connect.tables.spec import (
    HALTS_TABLE,
    IDENTITIES_TABLE,
    POSTGRES,
    PROGRESS_TABLE,
    RUNS_TABLE,
    SQLITE,
    VERSIONS_TABLE,
)
from millstream.errors import ConfigError, StoreError
from millstream.pipelines.stores import open_store
from millstream.pipelines.stores.spec import Progress
from millstream.pipelines.versions import postgres_views
from millstream.pipelines.versions.registry import Versions, catch_up, decode, encode

if TYPE_CHECKING:
    import psycopg

Result = TypeVar("Result")

LOCK_WAIT_MS = 10_000  # for readers of a view, while it is replaced
LOCK_TRY_MS = 200  # with some views locked; deadlock_timeout is a second by default
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {VERSIONS_TABLE} "
    "(pipeline TEXT PRIMARY KEY NOT NULL, number BIGINT NOT NULL, document TEXT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {HALTS_TABLE} (pipeline TEXT PRIMARY KEY NOT NULL, "
    "token TEXT NOT NULL, cut TEXT, renewed BIGINT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {RUNS_TABLE} (query TEXT PRIMARY KEY NOT NULL, token TEXT, "
    "document TEXT NOT NULL)",
)


class ReadersHoldLocks(StoreError):
    """Readers did not end in time; nothing was changed."""


class Work(ABC):
    """One transaction. Names of tables are those of declarations: `revenue`, `sales.revenue`."""

    lock = ""  # of rows that are read to be changed

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """With `?` for values."""

    @abstractmethod
    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one."""

    @abstractmethod
    def kind(self, name: str) -> str | None:
        """`table` or `view`; None if there is none of that name."""

    @abstractmethod
    def columns(self, table: str) -> list[str]: ...

    def with_locks(self, change: Callable[[], None], wait_ms: int = LOCK_WAIT_MS) -> None:
        """Change views or tables that readers read; raises `ReadersHoldLocks`."""
        change()

    @abstractmethod
    def put_view(self, view: str, table: str) -> None:
        """Create a view of all rows of a table, or replace the one of that name."""

    @abstractmethod
    def prepare_view(
        self, view: str, shown: str, tables: Sequence[str], *, wait_ms: int = LOCK_WAIT_MS
    ) -> None:
        """Define a view so that `show` can show each of these tables that has its columns. Readers
        see the same as before: the rows of `shown`."""

    def show(self, view: str, table: str) -> bool:
        """Show a table that the view was prepared for. False if it was not: then it is put."""
        return False

    @abstractmethod
    def rename(self, table: str, new_name: str) -> None: ...

    @abstractmethod
    def copy_table(self, table: str, new_name: str) -> None:
        """Create a table like another one, with its rows."""

    @abstractmethod
    def identity(self, table: str) -> str: ...

    # Documents

    def load(self, pipeline: str, *, locked: bool = False) -> Versions | None:
        lock = self.lock if locked else ""
        found = self.execute(
            f"SELECT document FROM {VERSIONS_TABLE} WHERE pipeline = ?{lock}", (pipeline,)
        )
        return decode(found[0][0]) if found else None

    def load_all(self) -> list[Versions]:
        found = self.execute(f"SELECT document FROM {VERSIONS_TABLE} ORDER BY pipeline")
        return [decode(text) for (text,) in found]

    def save(self, document: Versions) -> None:
        self.execute(
            f"INSERT INTO {VERSIONS_TABLE} (pipeline, number, document) VALUES (?, ?, ?) "
            "ON CONFLICT (pipeline) DO UPDATE SET number = excluded.number, "
            "document = excluded.document",
            (document.pipeline, document.number, encode(document)),
        )

    def delete(self, pipeline: str) -> None:
        self.execute(f"DELETE FROM {VERSIONS_TABLE} WHERE pipeline = ?", (pipeline,))

    # Progress

    def progress(self, query: str, *, locked: bool = False) -> Progress | None:
        lock = self.lock if locked else ""
        found = self.execute(
            "SELECT query, epoch, batch_id, offsets, decision, checkpoint, tables "
            f"FROM {PROGRESS_TABLE} WHERE query = ?{lock}",
            (query,),
        )
        return Progress(*found[0]) if found else None

    def adopt_tables(self, query: str, renamed: Mapping[str, str]) -> None:
        """Record new names of a query's tables, and fence the run that uses the old ones."""
        stored = self.progress(query, locked=True)
        if stored is None:
            return
        known = json.loads(stored.tables or "{}")
        tables = {renamed.get(name, name): identity for name, identity in known.items()}
        self.execute(
            f"UPDATE {PROGRESS_TABLE} SET tables = ?, epoch = epoch + 1 WHERE query = ?",
            (json.dumps(tables) if stored.tables else None, query),
        )

    def erase_progress(self, query: str) -> None:
        """As if the query had never run, except that its epoch rises: earlier runs stay fenced."""
        self.execute(
            f"UPDATE {PROGRESS_TABLE} SET epoch = epoch + 1, batch_id = NULL, offsets = NULL, "
            "decision = NULL, checkpoint = NULL, tables = NULL WHERE query = ?",
            (query,),
        )

    # Views and tables

    def drop_view(self, view: str) -> None:
        if self.kind(view) == "view":
            self.execute(f"DROP VIEW {self.quoted(view)}")

    def drop_table(self, table: str) -> None:
        if self.kind(table) == "table":
            self.execute(f"DROP TABLE {self.quoted(table)}")

    def quoted(self, name: str) -> str:
        return quote(name)


class SqliteWork(Work):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, tuple(values)).fetchall()

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(statement)

    def kind(self, name: str) -> str | None:
        found = self.execute(
            "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE "
            "AND type IN ('table', 'view')",
            (name,),
        )
        return str(found[0][0]) if found else None

    def columns(self, table: str) -> list[str]:
        return [it[1] for it in self.execute(f"PRAGMA table_info({quote(table)})")]

    def put_view(self, view: str, table: str) -> None:
        self.drop_view(view)
        self.execute(f"CREATE VIEW {quote(view)} AS SELECT * FROM {quote(table)}")

    def prepare_view(
        self, view: str, shown: str, tables: Sequence[str], *, wait_ms: int = LOCK_WAIT_MS
    ) -> None:
        """Nothing: to replace a view, no reader is waited for."""

    def rename(self, table: str, new_name: str) -> None:
        self.execute(f"ALTER TABLE {quote(table)} RENAME TO {quote(new_name)}")
        sqlite_tables.forget_identity(self._connection, new_name)
        self.execute(f"UPDATE {IDENTITIES_TABLE} SET name = ? WHERE name = ?", (new_name, table))

    def copy_table(self, table: str, new_name: str) -> None:
        found = self.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE "
            "AND type IN ('table', 'index') AND sql IS NOT NULL ORDER BY type DESC",
            (table,),
        )
        identities = sqlite_tables.identity_indexes(self._connection, table)
        for kind, name, statement in found:  # the table, and the indexes that a store has created
            if name in identities:
                continue  # the copy gets its own
            place = quote(table)
            if kind == "index":
                place = f" ON {place}"
                # Names of indexes are unique in a file, whatever their table.
                statement = statement.replace(quote(name), quote(f"{new_name} {name}"), 1)
            head, found_place, tail = statement.partition(place)
            if found_place:
                self.execute(head + place.replace(quote(table), quote(new_name)) + tail)
        self.execute(f"INSERT INTO {quote(new_name)} SELECT * FROM {quote(table)}")
        sqlite_tables.forget_identity(self._connection, new_name)
        sqlite_tables.identify(self._connection, new_name)

    def identity(self, table: str) -> str:
        return sqlite_tables.identity(self._connection, table) or ""

    def drop_table(self, table: str) -> None:
        super().drop_table(table)
        sqlite_tables.forget_identity(self._connection, table)


class PostgresWork(Work):
    lock = " FOR UPDATE"

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor: Any = self._connection.execute(
            statement.replace("?", "%s") if values else statement, tuple(values) or None
        )
        return cursor.fetchall() if cursor.description is not None else []

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor(name="millstream_rows") as cursor:
            yield from cursor.execute(statement)

    def quoted(self, name: str) -> str:
        return postgres_views.quoted(name)

    def kind(self, name: str) -> str | None:
        found = self.execute(
            "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(?)", (self.quoted(name),)
        )
        return {"r": "table", "p": "table", "v": "view"}.get(found[0][0]) if found else None

    def columns(self, table: str) -> list[str]:
        found = self.execute(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(?) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self.quoted(table),),
        )
        return [name for (name,) in found]

    def with_locks(self, change: Callable[[], None], wait_ms: int = LOCK_WAIT_MS) -> None:
        """Readers lock tables and views in their own order, so to wait for one of them while others
        are locked can be a deadlock, of which a reader may be the victim. All locks are given up if
        they cannot be had soon, long before PostgreSQL looks for deadlocks."""
        import psycopg

        deadline = time.monotonic() + wait_ms / 1000
        self.execute(f"SET LOCAL lock_timeout = {LOCK_TRY_MS}")
        while True:
            try:
                with self._connection.transaction():  # a savepoint
                    change()
                break
            except psycopg.errors.LockNotAvailable as error:
                if time.monotonic() > deadline:
                    raise ReadersHoldLocks(
                        "readers hold locks on what is to be replaced: waited "
                        f"{wait_ms / 1000:g} seconds, and changed nothing. Repeat the "
                        "command, or end long transactions of readers first"
                    ) from error
            time.sleep(random.uniform(0.0, LOCK_TRY_MS / 1000))
        self.execute("SET LOCAL lock_timeout TO DEFAULT")

    def prepare_view(
        self, view: str, shown: str, tables: Sequence[str], *, wait_ms: int = LOCK_WAIT_MS
    ) -> None:
        if shown not in tables:
            return
        wanted = [
            it
            for it in tables
            if it == shown or postgres_views.has_columns_of(self.execute, it, view)
        ]
        postgres_views.put_row(self.execute, view, shown)
        under = postgres_views.relations_under(self.execute, view)
        if under == postgres_views.relations(self.execute, wanted):
            return
        query = postgres_views.definition(view, self.columns(view), wanted)
        define = f"CREATE OR REPLACE VIEW {self.quoted(view)} AS {query}"
        self.with_locks(lambda: self._do(define), wait_ms)

    def _do(self, statement: str) -> None:
        self.execute(statement)

    def show(self, view: str, table: str) -> bool:
        under = postgres_views.relations_under(self.execute, view)
        if not postgres_views.relations(self.execute, [table]) <= under:
            return False
        if not postgres_views.has_columns_of(self.execute, table, view):
            return False  # it got others since
        postgres_views.put_row(self.execute, view, table)
        return True

    def put_view(self, view: str, table: str) -> None:
        """A view whose columns stay keeps its grants and the views that depend on it. Others are
        created again with their grants; PostgreSQL refuses this if other views depend on them."""
        import psycopg

        postgres_views.put_row(self.execute, view, table)
        define = f"VIEW {self.quoted(view)} AS SELECT * FROM {self.quoted(table)}"
        try:
            with self._connection.transaction():
                self.execute(f"CREATE OR REPLACE {define}")
            return
        except psycopg.errors.InvalidTableDefinition:
            pass  # it has other columns
        grants = self._grants(view)
        try:
            self.execute(f"DROP VIEW {self.quoted(view)}")
        except psycopg.errors.DependentObjectsStillExist as error:
            raise ConfigError(
                f"view {view} cannot have the columns of {table}: {error.diag.message_detail}. "
                "Drop what depends on it, and create it again after the switch"
            ) from error
        self.execute(f"CREATE {define}")
        for grantee, privilege in grants:
            self.execute(f"GRANT {privilege} ON {self.quoted(view)} TO {grantee}")

    def drop_view(self, view: str) -> None:
        super().drop_view(view)
        postgres_views.delete_row(self.execute, view)

    def _grants(self, view: str) -> list[tuple[str, str]]:
        found = self.execute(
            "SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, "
            "a.privilege_type FROM pg_class c, aclexplode(c.relacl) a "
            "LEFT JOIN pg_roles r ON r.oid = a.grantee "
            "WHERE c.oid = to_regclass(?) AND a.grantee <> c.relowner",
            (self.quoted(view),),
        )
        return [(str(grantee), str(privilege)) for grantee, privilege in found]

    def rename(self, table: str, new_name: str) -> None:
        new = new_name.split(".", 1)[-1]
        self.execute(f"ALTER TABLE {self.quoted(table)} RENAME TO {quote(new)}")

    def copy_table(self, table: str, new_name: str) -> None:
        old, new = self.quoted(table), self.quoted(new_name)
        self.execute(f"CREATE TABLE {new} (LIKE {old} INCLUDING ALL)")
        self.execute(f"INSERT INTO {new} SELECT * FROM {old}")

    def identity(self, table: str) -> str:
        return postgres_identity(self._connection, self.quoted(table)) or ""


class Catalog(ABC):
    """The versions in one store. One thread at a time."""

    prepares_views = False  # whether `prepare_view` does anything

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_prepared = False

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything was deployed to this store; creates nothing."""

    def find(self, pipeline: str) -> Versions | None:
        """The versions of a pipeline, if any were deployed; creates nothing."""
        if not self.exists():
            return None
        return self.read(lambda work: work.load(pipeline))

    def read(self, action: Callable[[Work], Result]) -> Result:
        """In a transaction that only reads, and keeps nobody waiting."""
        self._prepare_once()
        with self.snapshot() as work:
            return action(work)

    def run(self, action: Callable[[Work], Result], doing: str) -> Result:
        """In one transaction; again if the server went away before it was committed."""
        self._prepare_once()
        return self._run(action, doing)

    def note_caught_up(self, pipeline: str, version: str) -> None:
        """The version has read all that there is."""

        def note(work: Work) -> None:
            document = work.load(pipeline, locked=True)
            if document is not None and not document.get(version).is_caught_up:
                work.save(catch_up(document, version))

        self.run(note, "catch up")

    def _prepare_once(self) -> None:
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True

    @abstractmethod
    @contextmanager
    def snapshot(self) -> Iterator[Work]:
        """A transaction that only reads, and sees all tables at one moment."""
        yield  # type: ignore[misc]

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _run(self, action: Callable[[Work], Result], doing: str) -> Result: ...

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SqliteCatalog(Catalog):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._path = Path(url.removeprefix(SQLITE))
        self._connection: sqlite3.Connection | None = None

    def exists(self) -> bool:
        if not self._path.exists():
            return False
        return bool(self._work().kind(VERSIONS_TABLE))

    def _work(self) -> SqliteWork:
        if self._connection is None:
            self._connection = sqlite_tables.open_database(self._path)
        return SqliteWork(self._connection)

    def _prepare(self) -> None:
        with open_store(self.url) as store:
            store.progress("")  # creates its tables
        with self._reporting("prepare"):
            for statement in _CREATE:
                self._work().execute(statement)

    def _run(self, action: Callable[[Work], Result], doing: str) -> Result:
        with self._reporting(f"{doing} in"):
            work = self._work()
            assert self._connection is not None
            with sqlite_tables.transaction(self._connection):
                return action(work)

    @contextmanager
    def snapshot(self) -> Iterator[Work]:
        with self._reporting("read"):
            work = self._work()
            work.execute("BEGIN")
            try:
                yield work
            finally:
                work.execute("ROLLBACK")

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot {doing} {self._path}: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresCatalog(Catalog):
    prepares_views = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._connection: psycopg.Connection | None = None

    def exists(self) -> bool:
        def look() -> bool:
            return PostgresWork(self._opened()).kind(VERSIONS_TABLE) is not None

        return patiently(look, "be used as a store")

    def _opened(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.url)
        return self._connection

    def _prepare(self) -> None:
        with open_store(self.url) as store:
            store.progress("")  # creates its tables

        def create(work: Work) -> None:
            work.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
            for statement in (*_CREATE, postgres_views.CREATE_SHOWN):
                work.execute(statement)

        self._run(create, "prepare versions")

    def _run(self, action: Callable[[Work], Result], doing: str) -> Result:
        def attempt() -> Result:
            connection = self._opened()
            with connection.transaction():
                return action(PostgresWork(connection))

        return patiently(attempt, doing)

    @contextmanager
    def snapshot(self) -> Iterator[Work]:
        import psycopg

        try:
            connection = self._opened()
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute("SET LOCAL TIME ZONE 'UTC'")
                yield PostgresWork(connection)
        except psycopg.Error as error:
            raise explained(error, "read versions") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def open_catalog(url: str) -> Catalog:
    """Raises `ConfigError` for a store that has no views."""
    if url.startswith(SQLITE):
        return SqliteCatalog(url)
    if url.startswith(POSTGRES):
        return PostgresCatalog(url)
    raise ConfigError(
        f"store {url.partition('://')[0]} has no views that can be moved in a transaction: "
        "versions need sqlite:///... or postgresql://..."
    )


def has_catalog(url: str) -> bool:
    return url.startswith((SQLITE, *POSTGRES))
