"""Databases as readers use them: one snapshot per read, nothing can be written, and limits.

A `Session` is a read-only transaction. All of its statements see the database as it was at the
first one, however many batches are committed meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.connect.tables.postgres_connection import connect
from millstream.connect.tables.schema import Column
from millstream.connect.tables.spec import POSTGRES, SQLITE
from millstream.errors import ConfigError, StoreError, TooMuch, ViewError
from millstream.views.stamping import CHANNEL
from millstream.views.values import from_sqlite, to_sqlite

if TYPE_CHECKING:
    import psycopg

IDLE_MAX = 8  # connections that are kept for the next reads
_POLL_SECONDS = 0.01  # SQLite has no notifications: its counter of changes is looked at
_CHECK_EVERY = 10_000  # instructions of SQLite's machine between two looks at the clock
_FileId: TypeAlias = tuple[int, int]
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class TableGone(StoreError):
    """A table that the snapshot lists was dropped before it was locked."""


class Session(ABC):
    """A snapshot of the database, until it ends."""

    mark: str  # of a parameter

    @abstractmethod
    def hold(self, tables: Sequence[str]) -> None:
        """Keep these tables until the snapshot ends. Raises `TableGone`."""

    @abstractmethod
    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Of a statement of our own."""

    @abstractmethod
    def query(
        self, statement: str, values: Sequence[Any], *, rows_max: int, seconds_max: float
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and the rows of a reader's statement. Raises `ViewError`."""

    def value(self, column: Column, value: Any) -> Any:
        """A key's value as the database compares it."""
        return value

    def read(self, column: Column, value: Any) -> Any:
        """A value of the database as readers get it."""
        return value


class Database(ABC):
    """Where views are. Sessions may be used in any thread, one thread at a time."""

    orders_decimals = True

    @abstractmethod
    def session(self) -> Any:
        """A context manager of a `Session`. Raises `StoreError` if there is no database."""

    @abstractmethod
    def watch(self) -> Watch:
        """For one reader that waits."""

    @abstractmethod
    def close(self) -> None: ...


class Watch(ABC):
    """Waits for batches, in one thread."""

    @abstractmethod
    def wait(self, seconds_max: float) -> None:
        """Until a batch may have been written since the last call, or the time is up. The first
        call returns at once."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_database(url: str) -> Database:
    """Raises `ConfigError` for stores that have no snapshots of several tables."""
    if url.startswith(SQLITE) and len(url) > len(SQLITE):
        return SqliteDatabase(Path(url.removeprefix(SQLITE)))
    if url.startswith(POSTGRES):
        return PostgresDatabase(url)
    raise ConfigError(
        f"views are read from SQLite or PostgreSQL, and the store is {url.partition('://')[0]}://"
    )


class SqliteDatabase(Database):
    """A file, opened for reading only."""

    orders_decimals = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[tuple[sqlite3.Connection, _FileId]] = deque(maxlen=IDLE_MAX)

    @contextmanager
    def session(self) -> Iterator[Session]:
        connection, file = self._connected()
        try:
            connection.execute("BEGIN")
            yield SqliteSession(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._keep(connection, file)

    def watch(self) -> Watch:
        return SqliteWatch(self)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()

    def file_id(self) -> _FileId:
        """Another one after the file was replaced, such as by an older copy. A connection goes on
        reading the file that it has opened, even when that is deleted."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        return found.st_dev, found.st_ino

    def open(self) -> tuple[sqlite3.Connection, _FileId]:
        file = self.file_id()
        try:
            return sqlite3.connect(
                f"{self._path.resolve().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            ), file
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self._path}: {error}") from error

    def _connected(self) -> tuple[sqlite3.Connection, _FileId]:
        file = self.file_id()
        while self._idle:
            with suppress(IndexError):
                connection, opened = self._idle.pop()
                if opened == file:
                    return connection, opened
                connection.close()
        return self.open()

    def _keep(self, connection: sqlite3.Connection, file: _FileId) -> None:
        if len(self._idle) < IDLE_MAX:
            self._idle.append((connection, file))
        else:
            connection.close()


class SqliteWatch(Watch):
    """Looks at SQLite's counter of changes by other connections; there is no notification."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._connection, self._file = database.open()
        self._version = -1

    def wait(self, seconds_max: float) -> None:
        deadline = time.monotonic() + seconds_max
        while True:
            if self._database.file_id() != self._file:
                self._connection.close()
                self._connection, self._file = self._database.open()
                self._version = -1
            version = self._read_version()
            left = deadline - time.monotonic()
            if version != self._version or left <= 0:
                self._version = version
                return
            time.sleep(min(_POLL_SECONDS, left))

    def _read_version(self) -> int:
        try:
            ((version,),) = self._connection.execute("PRAGMA data_version")
        except sqlite3.Error as error:
            raise StoreError(f"cannot wait for views: {error}") from error
        return int(version)

    def close(self) -> None:
        self._connection.close()


class SqliteSession(Session):
    mark = "?"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def hold(self, tables: Sequence[str]) -> None:
        """Its snapshot has the tables."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read views: {error}") from error

    def query(
        self, statement: str, values: Sequence[Any], *, rows_max: int, seconds_max: float
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        deadline = time.monotonic() + seconds_max
        connection = self._connection
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
        connection.set_authorizer(_authorize)
        try:
            cursor = connection.execute(statement, [_bound(it) for it in values])
            found = cursor.fetchmany(rows_max + 1)
            names = [it[0] for it in cursor.description or ()]
            cursor.close()
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise _too_long(seconds_max) from error
            raise ViewError(f"the query failed: {error}") from error
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise ViewError(f"the query failed: {error}") from error
        finally:
            connection.set_progress_handler(None, 0)
            connection.set_authorizer(None)
        return names, _limited(found, rows_max)

    def value(self, column: Column, value: Any) -> Any:
        return to_sqlite(column, value)

    def read(self, column: Column, value: Any) -> Any:
        return from_sqlite(column, value)


def _bound(value: Any) -> Any:
    """SQLite compares numbers with numbers; decimals of views are texts there."""
    return float(value) if isinstance(value, Decimal) else value


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


class PostgresDatabase(Database):
    """A database; the rights of its user limit what a reader's SQL can see."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: deque[psycopg.Connection] = deque(maxlen=IDLE_MAX)

    @contextmanager
    def session(self) -> Iterator[Session]:
        import psycopg

        connection = self._begun()
        try:
            yield PostgresSession(connection)
        finally:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
                self._keep(connection)

    def watch(self) -> Watch:
        return PostgresWatch(self._open())

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _begun(self) -> psycopg.Connection:
        """A connection with a new transaction. Kept ones may have been ended by the server."""
        import psycopg

        statement = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                try:
                    connection.execute(statement)
                except psycopg.Error:
                    connection.close()
                else:
                    return connection
        connection = self._open()
        try:
            connection.execute(statement)
        except psycopg.Error as error:
            connection.close()
            raise StoreError(f"cannot read views: {error}") from error
        return connection

    def _keep(self, connection: psycopg.Connection) -> None:
        if len(self._idle) < IDLE_MAX and not connection.closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _open(self) -> psycopg.Connection:
        import psycopg

        try:
            return connect(self._url)
        except psycopg.Error as error:
            raise StoreError(f"cannot reach the store of the views: {error}") from error


class PostgresWatch(Watch):
    """Listens to the notification that a writer of views sends with every batch."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._is_listening = False

    def wait(self, seconds_max: float) -> None:
        import psycopg

        try:
            if not self._is_listening:
                self._connection.execute(f"LISTEN {CHANNEL}")
                self._is_listening = True
                return
            for _ in self._connection.notifies(timeout=seconds_max, stop_after=1):
                pass
        except psycopg.Error as error:
            raise StoreError(f"cannot wait for views: {error}") from error

    def close(self) -> None:
        self._connection.close()


class PostgresSession(Session):
    """Its snapshot has rows, but not the tables themselves: these are locked."""

    mark = "%s"

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def hold(self, tables: Sequence[str]) -> None:
        import psycopg

        try:
            self._connection.execute(f"SELECT 1 FROM {', '.join(tables)} LIMIT 0")
        except psycopg.errors.UndefinedTable as error:
            raise TableGone(f"cannot read views: {error}") from error
        except psycopg.Error as error:
            raise StoreError(f"cannot read views: {error}") from error

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        import psycopg

        try:
            found: list[Any] = self._connection.execute(statement, values or None).fetchall()
        except psycopg.Error as error:
            raise StoreError(f"cannot read views: {error}") from error
        return found

    def query(
        self, statement: str, values: Sequence[Any], *, rows_max: int, seconds_max: float
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        import psycopg

        try:
            with self._connection.transaction():
                self._connection.execute(f"SET LOCAL statement_timeout = {int(seconds_max * 1000)}")
                with self._connection.cursor(name="millstream_query") as cursor:
                    cursor.execute(statement, values or None)
                    found: list[Any] = cursor.fetchmany(rows_max + 1)
                    names = [it.name for it in cursor.description or ()]
        except psycopg.errors.QueryCanceled as error:
            raise _too_long(seconds_max) from error
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            raise ViewError(f"the query failed: {text}") from error
        return names, _limited(found, rows_max)


def _limited(rows: list[tuple[Any, ...]], rows_max: int) -> list[tuple[Any, ...]]:
    if len(rows) > rows_max:
        raise TooMuch(f"the query has more than {rows_max} rows: add a LIMIT, or allow more")
    return rows


def _too_long(seconds_max: float) -> TooMuch:
    return TooMuch(f"the query took longer than {seconds_max:g} seconds and was stopped")
