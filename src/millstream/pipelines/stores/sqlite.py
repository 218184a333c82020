"""SQLite: a file, written by one process at a time, read by as many as like.

Write-ahead log and `synchronous=FULL`: readers see whole batches and block nobody, and a batch
that was reported as written outlives a power cut. Rows come to the driver as Arrow columns.

What SQLite has no type for is text that sorts as it should: dates as `2026-01-31`, timestamps as
`2026-01-31 12:00:00.000000` in UTC, decimals with all their digits, nested values as JSON. A
boolean is 0 or 1; SQLite knows no NaN and keeps NULL in its place.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import SchemaMismatch, StoreError
from millstream.pipelines.decimals import decimal_texts
from millstream.pipelines.stores.fencing import is_due
from millstream.pipelines.stores.rows import NOT_UTF8_CURE, Rows, distinct_keys, json_texts
from millstream.pipelines.stores.schema import Column, Layout, on_conflict, quote, quoted
from millstream.pipelines.stores.spec import (
    FORGOTTEN,
    PROGRESS_TABLE,
    BatchMark,
    Progress,
    TableSpec,
)
from millstream.pipelines.stores.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BUSY_SECONDS_MAX = 60.0  # how long another writer of the file is waited for
_CACHE_KIB = 64 * 1024
_TYPES = {
    "boolean": "INTEGER",
    "byte": "INTEGER",
    "short": "INTEGER",
    "int": "INTEGER",
    "long": "INTEGER",
    "float": "REAL",
    "double": "REAL",
    "binary": "BLOB",
}  # all else: TEXT
_CREATE_PROGRESS = f"""
    CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} (
        query TEXT PRIMARY KEY NOT NULL, epoch INTEGER NOT NULL, batch_id INTEGER,
        offsets TEXT, decision TEXT, checkpoint TEXT, written_at TEXT, tables TEXT
    )"""
# SQLite gives tables no identity of their own: each has a random one from when we first saw it.
_IDENTITIES = "millstream_tables"
_CREATE_IDENTITIES = f"""
    CREATE TABLE IF NOT EXISTS {_IDENTITIES} (
        name TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, identity TEXT NOT NULL
    )"""


class SqliteStore(Store):
    """Tables in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def progress(self, query: str) -> Progress | None:
        with self._reporting("read the progress of"), self._lock:
            return self._stored(query)

    def _find_writers(self, table: TableSpec) -> tuple[str, list[tuple[str, str]]]:
        with self._reporting("read the progress of"), self._lock:
            connection = self._opened()
            found = connection.execute(
                f"SELECT query, tables FROM {PROGRESS_TABLE} WHERE tables IS NOT NULL"
            ).fetchall()
            return _identities(connection, [table])[table.name], found

    def forget(self, query: str) -> None:
        with self._transaction() as connection:
            connection.execute(
                f"INSERT INTO {PROGRESS_TABLE} (query, epoch, batch_id) VALUES (?, 0, {FORGOTTEN}) "
                f"ON CONFLICT (query) DO UPDATE SET batch_id = {FORGOTTEN}, offsets = NULL, "
                "decision = NULL, checkpoint = NULL, tables = NULL",
                (query,),
            )

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _fit(self, layout: Layout) -> Layout:
        with self._transaction() as connection:
            name = layout.table.name
            found = list(connection.execute(f"PRAGMA table_info({quote(name)})"))
            if not found:
                for statement in create_statements(layout):
                    connection.execute(statement)
                connection.execute(f"DELETE FROM {_IDENTITIES} WHERE name = ?", (name,))
            else:
                check_columns(layout, found, is_strict=_is_strict(connection, name))
                if layout.table.mode == "upsert":
                    _check_key(connection, layout)
            connection.execute(
                f"INSERT OR IGNORE INTO {_IDENTITIES} VALUES (?, ?)", (name, uuid.uuid4().hex)
            )
        return layout

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
            tables = _identities(connection, [layout.table for _, layout in outputs])
            if not self._judge(replace(mark, tables=tables)):
                return False
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
        """The file is this writer's alone until the end, which keeps all or nothing."""
        with self._reporting("write to"), self._lock:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite itself rolls back when the disk is full
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            message = f"cannot {doing} {self._path}: {error}{_hint(str(error))}"
            raise StoreError(message) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self._path,
                timeout=_BUSY_SECONDS_MAX,
                isolation_level=None,
                check_same_thread=False,  # Spark calls from a thread of its own; we lock
            )
            try:
                ((mode,),) = connection.execute("PRAGMA journal_mode = WAL")
                if mode != "wal":
                    raise StoreError(
                        f"{self._path} cannot have a write-ahead log (its mode is {mode!r}); "
                        "put the file on a local disk"
                    )
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                connection.execute(_CREATE_PROGRESS)
                connection.execute(_CREATE_IDENTITIES)
                _add_tables_column(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


def _hint(cause: str) -> str:
    if "full" in cause or "disk I/O" in cause:
        return "; nothing of the batch was kept: make room on the disk and start again"
    if "locked" in cause or "busy" in cause:
        return f"; another process has been writing to it for {_BUSY_SECONDS_MAX:.0f} seconds"
    if "unable to open" in cause or "readonly" in cause:
        return "; check that its directory exists and may be written to"
    return "; nothing of the batch was kept"


def _add_tables_column(connection: sqlite3.Connection) -> None:
    """To a progress table that was created before it had the column."""
    columns = connection.execute(f"PRAGMA table_info({PROGRESS_TABLE})").fetchall()
    if "tables" not in {name for _, name, *_ in columns}:
        connection.execute(f"ALTER TABLE {PROGRESS_TABLE} ADD COLUMN tables TEXT")


def _identities(connection: sqlite3.Connection, tables: Sequence[TableSpec]) -> Mapping[str, str]:
    """By the names that the tables have in the pipeline."""
    found = {}
    for table in tables:
        statement = f"SELECT identity FROM {_IDENTITIES} WHERE name = ?"
        ((found[table.name],),) = connection.execute(statement, (table.name,))
    return found


def column_type(column: Column) -> str:
    return _TYPES.get(column.kind, "TEXT")


def create_statements(layout: Layout) -> list[str]:
    spec = layout.table
    keys = {column.name for column in layout.key} if spec.mode != "append" else set()
    lines = [
        f"{quote(column.name)} {column_type(column)}{' NOT NULL' if column.name in keys else ''}"
        for column in layout.columns
    ]
    options = ""
    if spec.mode == "upsert":
        lines.append(f"PRIMARY KEY ({quoted(layout.key)})")
        # A single integer is the row's own number; any other key is best kept with its row.
        if [column_type(column) for column in layout.key] != ["INTEGER"]:
            options = " WITHOUT ROWID"
    statements = [f"CREATE TABLE {quote(spec.name)} ({', '.join(lines)}){options}"]
    if spec.mode == "replace":
        index = quote(f"{spec.name} by {', '.join(spec.key)}")
        statements.append(f"CREATE INDEX {index} ON {quote(spec.name)} ({quoted(layout.key)})")
    return statements


def affinity(declared: str) -> str:
    """What a declared type means to SQLite (section 3.1 of its "Datatypes")."""
    declared = declared.upper()
    for affinity_name, words in (
        ("INTEGER", ("INT",)),
        ("TEXT", ("CHAR", "CLOB", "TEXT")),
        ("BLOB", ("BLOB",)),
        ("REAL", ("REAL", "FLOA", "DOUB")),
    ):
        if any(word in declared for word in words):
            return affinity_name
    return "NUMERIC" if declared else "BLOB"


def fits(column: Column, declared: str, *, is_strict: bool = False) -> bool:
    """`ANY` keeps values as they are in STRICT tables; in others it makes numbers of them."""
    found = affinity(declared)
    if found == column_type(column) or not declared:
        return True
    if declared.upper() == "ANY" and is_strict:
        return True
    if column.kind == "boolean":
        return found == "NUMERIC"
    if column.kind in ("date", "timestamp", "timestamp_ntz"):
        return declared.upper() in ("DATE", "DATETIME", "TIMESTAMP")
    return False


def _is_strict(connection: sqlite3.Connection, table: str) -> bool:
    """Versions before 3.37 have neither such tables nor this question."""
    listed = connection.execute(f"PRAGMA table_list({quote(table)})").fetchall()
    return any(is_strict for *_, is_strict in listed)


def check_columns(layout: Layout, found: Sequence[Any], *, is_strict: bool = False) -> None:
    """`found` is what `PRAGMA table_info` says."""
    table = layout.table.name
    declared = {str(name).lower(): str(kind) for _, name, kind, *_ in found}
    for column in layout.columns:
        kind = declared.get(column.name.lower())
        wanted = column_type(column)
        if kind is None:
            raise SchemaMismatch(
                f"table {table!r} has no column {column.name!r} ({column}); add it: "
                f"ALTER TABLE {quote(table)} ADD COLUMN {quote(column.name)} {wanted}"
            )
        if not fits(column, kind, is_strict=is_strict):
            raise SchemaMismatch(
                f"table {table!r}: column {column.name!r} is {kind} there and {column} in the "
                f"rows, which needs {wanted}; cast it in the pipeline, or write to a new table"
            )
    ours = {name.lower() for name in layout.names}
    for _, name, kind, required, default, in_key in found:
        if name.lower() not in ours and required and default is None and not in_key:
            raise SchemaMismatch(
                f"table {table!r}: its column {name!r} ({kind}) needs a value, and the rows have "
                "no such column; add it to the rows, or give it a default"
            )


def _check_key(connection: sqlite3.Connection, layout: Layout) -> None:
    """An upsert needs a unique index on exactly its key."""
    table = layout.table
    wanted = {name.lower() for name in table.key}
    info = connection.execute(f"PRAGMA table_info({quote(table.name)})")
    if {name.lower() for _, name, _, _, _, in_key in info if in_key} == wanted:
        return
    for _, index, unique, _, partial in list(
        connection.execute(f"PRAGMA index_list({quote(table.name)})")
    ):
        if unique and not partial:
            columns = connection.execute(f"PRAGMA index_info({quote(index)})")
            if {str(name).lower() for _, _, name in columns} == wanted:
                return
    raise SchemaMismatch(
        f"table {table.name!r} has no unique key ({', '.join(table.key)}), which upserts go by; "
        f"add it: CREATE UNIQUE INDEX {quote(f'{table.name} key')} "
        f"ON {quote(table.name)} ({quoted(layout.key)})"
    )


def apply(connection: sqlite3.Connection, rows: Rows, layout: Layout) -> None:
    """Bring the rows into the table, within the caller's transaction."""
    spec = layout.table
    if spec.mode == "replace":
        _delete(connection, distinct_keys(rows.table, spec.key), layout)
    elif (removed := rows.removed()) is not None:
        _delete(connection, removed, layout)
    kept = rows.kept()
    places = ", ".join("?" * len(layout.columns))
    statement = f"INSERT INTO {quote(spec.name)} ({quoted(layout.columns)}) VALUES ({places})"
    if spec.mode == "upsert":
        statement += on_conflict(layout)
    columns = [python_values(kept.column(column.name), column) for column in layout.columns]
    connection.executemany(statement, zip(*columns, strict=True))


def _delete(connection: sqlite3.Connection, keys: pa.Table, layout: Layout) -> None:
    condition = " AND ".join(f"{quote(column.name)} = ?" for column in layout.key)
    columns = [python_values(keys.column(column.name), column) for column in layout.key]
    statement = f"DELETE FROM {quote(layout.table.name)} WHERE {condition}"
    connection.executemany(statement, zip(*columns, strict=True))


def python_values(values: pa.ChunkedArray, column: Column) -> list[Any]:
    """A column as what sqlite3 binds; by way of numpy, ten times the speed of `to_pylist`."""
    if column.kind == "json":
        values = json_texts(values, column)
    elif column.kind in ("timestamp", "timestamp_ntz"):
        values = values.cast(pa.timestamp("us")).cast(pa.string())
    elif column.kind == "decimal":
        values = decimal_texts(values)
    elif column.kind == "date":
        values = values.cast(pa.string())
    elif column.kind == "boolean":
        values = values.cast(pa.int8())
    if column_type(column) in ("TEXT", "BLOB") or not values.null_count:
        try:
            return values.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise StoreError(
                f"column {column.name!r} has a string that is not valid UTF-8; {NOT_UTF8_CURE}"
            ) from error
    plain: list[Any] = values.fill_null(0).to_numpy().tolist()
    for row in values.is_null().to_numpy().nonzero()[0].tolist():
        plain[row] = None
    return plain
