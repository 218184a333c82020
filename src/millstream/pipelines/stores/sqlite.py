"""SQLite: a file, written by one process at a time, read by as many as like.

Rows come to the driver as Arrow columns. See `connect/tables/sqlite_tables.py` for types.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.connect.tables.rows import Rows
from millstream.connect.tables.schema import Layout, quote
from millstream.connect.tables.spec import PROGRESS_TABLE, VERSIONS_TABLE, TableSpec
from millstream.connect.tables.sqlite_tables import (
    apply,
    explain,
    fit,
    identity,
    open_database,
    transaction,
)
from millstream.pipelines.stores.fencing import check_role, is_due
from millstream.pipelines.stores.spec import FORGOTTEN, BatchMark, Progress
from millstream.pipelines.stores.store import Store
from millstream.views.generations import (
    Generations,
    drop_retired,
    find_generations,
    retire,
    retired,
)
from millstream.views.stamping import CREATE_TABLES, SqliteStamps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CREATE_PROGRESS = f"""
    CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} (
        query TEXT PRIMARY KEY NOT NULL, epoch INTEGER NOT NULL, batch_id INTEGER,
        offsets TEXT, decision TEXT, checkpoint TEXT, written_at TEXT, tables TEXT
    )"""


class SqliteStore(Store):
    """Tables in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._stamps: dict[str, SqliteStamps] = {}  # of queries that have views

    def progress(self, query: str) -> Progress | None:
        with self._reporting("read the progress of"), self._lock:
            return self._stored(query)

    def _find_writers(self, table: TableSpec) -> tuple[str | None, list[tuple[str, str]]]:
        with self._reporting("read the progress of"), self._lock:
            connection = self._opened()
            found = connection.execute(
                f"SELECT query, tables FROM {PROGRESS_TABLE} WHERE tables IS NOT NULL"
            ).fetchall()
            is_there = connection.execute(f"PRAGMA table_info({quote(table.name)})").fetchone()
            return identity(connection, table.name) if is_there else None, found

    def view_writer(self, table: TableSpec) -> str | None:
        with self._reporting("look for views in"), self._lock:
            return SqliteStamps.view_writer(self._opened(), table)

    def forget(self, query: str) -> None:
        with self._transaction() as connection:
            connection.execute(
                f"INSERT INTO {PROGRESS_TABLE} (query, epoch, batch_id) VALUES (?, 0, {FORGOTTEN}) "
                f"ON CONFLICT (query) DO UPDATE SET batch_id = {FORGOTTEN}, offsets = NULL, "
                "decision = NULL, checkpoint = NULL, tables = NULL",
                (query,),
            )
            if query in self._stamps:
                self._stamps[query].forget(connection)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _fit(self, layout: Layout) -> Layout:
        with self._transaction() as connection:
            fit(connection, layout)
        return layout

    def _list_views(
        self, query: str, views: Sequence[tuple[str, Layout, int]], writer: str
    ) -> None:
        stamps = SqliteStamps(query, views, writer)
        with self._transaction() as connection:
            stamps.list_views(connection)
        self._stamps[writer] = stamps

    def generations(self, query: str) -> Generations:
        with self._transaction() as connection:
            for statement in CREATE_TABLES:
                connection.execute(statement)
            return find_generations(connection, "?", query)

    def retire(self, query: str, writers: Sequence[str] = ()) -> None:
        with self._transaction() as connection:
            retire(connection, "?", writers)
            for writer, entries in retired(connection, query).items():
                drop_retired(connection, "?", writer, entries, has_functions=False)

    def _raise_epoch(self, query: str) -> int:
        with self._transaction() as connection:
            cursor = connection.execute(
                f"INSERT INTO {PROGRESS_TABLE} (query, epoch) VALUES (?, 1) "
                "ON CONFLICT (query) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
                (query,),
            )
            return int(cursor.fetchall()[0][0])

    def _is_due(self, mark: BatchMark) -> bool:
        with self._reporting("read the progress of"), self._lock:
            return self._judge(mark)

    def _judge(self, mark: BatchMark) -> bool:
        epoch = self._epochs[mark.query]
        return is_due(self._stored(mark.query) or Progress(mark.query, 0), epoch, mark)

    def _stored(self, query: str) -> Progress | None:
        rows = self._opened().execute(
            "SELECT query, epoch, batch_id, offsets, decision, checkpoint, tables "
            f"FROM {PROGRESS_TABLE} WHERE query = ?",
            (query,),
        )
        found = rows.fetchall()
        return Progress(*found[0]) if found else None

    def _write_frames(
        self, outputs: Sequence[tuple[DataFrame, TableSpec]], mark: BatchMark
    ) -> bool:
        return self._write_tables([(frame.toArrow(), table) for frame, table in outputs], mark)

    def _write_ready(self, outputs: Sequence[tuple[Rows, Layout]], mark: BatchMark) -> bool:
        with self._transaction() as connection:
            if mark.role is not None:
                statement = f"SELECT number FROM {VERSIONS_TABLE} WHERE pipeline = ?"
                found = connection.execute(statement, (mark.role.pipeline,)).fetchone()
                check_role(mark.role, found and found[0])
            if mark.query in self._stamps:
                self._stamps[mark.query].check(connection)
            tables = _identities(connection, [layout.table for _, layout in outputs])
            if not self._judge(replace(mark, tables=tables)):
                return False
            if mark.query in self._stamps:
                self._stamps[mark.query].begin(connection, mark.offsets, mark.topic_ids)
            for rows, layout in outputs:
                apply(connection, rows, layout)
            connection.execute(
                f"UPDATE {PROGRESS_TABLE} SET batch_id = ?, offsets = ?, decision = ?, "
                "checkpoint = ?, written_at = datetime('now'), tables = ? WHERE query = ?",
                (
                    mark.batch_id,
                    mark.offsets,
                    mark.decision,
                    mark.checkpoint,
                    json.dumps(tables),
                    mark.query,
                ),
            )
            return True

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reporting("write to"), self._lock:
            connection = self._opened()
            with transaction(connection):
                yield connection

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise explain(error, doing, self._path) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = open_database(self._path)
            try:
                connection.execute(_CREATE_PROGRESS)
                _add_tables_column(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


def _add_tables_column(connection: sqlite3.Connection) -> None:
    """To a progress table that was created before it had the column."""
    columns = connection.execute(f"PRAGMA table_info({PROGRESS_TABLE})").fetchall()
    if "tables" not in {name for _, name, *_ in columns}:
        connection.execute(f"ALTER TABLE {PROGRESS_TABLE} ADD COLUMN tables TEXT")


def _identities(connection: sqlite3.Connection, tables: Sequence[TableSpec]) -> Mapping[str, str]:
    """By the names that the tables have in the pipeline."""
    return {table.name: identity(connection, table.name) or "" for table in tables}
