"""Tables of SQLite: how a file is opened, how tables are created, what must fit, how rows get in.

Write-ahead log and `synchronous=FULL`: readers see whole transactions and block nobody, and a
transaction that was reported as committed survives a power cut.

SQLite has no type for some values. They become text that sorts correctly: dates as `2026-01-31`,
timestamps as `2026-01-31 12:00:00.000000` in UTC, decimals with all their digits, nested values as
JSON. A boolean is 0 or 1; SQLite has no NaN and stores NULL instead.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.connect.tables.decimals import decimal_texts
from millstream.connect.tables.rows import NOT_UTF8_CURE, Rows, distinct_keys, json_texts
from millstream.connect.tables.schema import Column, Layout, on_conflict, quote, quoted
from millstream.connect.tables.spec import IDENTITIES_TABLE
from millstream.errors import SchemaMismatch, StoreError

BUSY_SECONDS_MAX = 60.0  # how long another writer of the file is waited for
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
# SQLite gives tables no identity of their own: each gets a random one from us. It is in the name of
# an index that never has an entry. The index is dropped with its table, and stays with it when the
# table is renamed or the file is copied. Views cannot have indexes: their identities are in a
# table, and those that earlier builds gave to tables.
_IDENTITY_INDEX = "millstream identity "
_CREATE_IDENTITIES = f"""
    CREATE TABLE IF NOT EXISTS {IDENTITIES_TABLE} (
        name TEXT PRIMARY KEY NOT NULL COLLATE NOCASE, identity TEXT NOT NULL
    )"""


def open_database(path: Path) -> sqlite3.Connection:
    """A connection for writing, in which transactions begin and end explicitly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS_MAX,
        isolation_level=None,
        check_same_thread=False,  # callers may use threads of their own, one at a time
    )
    try:
        ((mode,),) = connection.execute("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise StoreError(
                f"{path} cannot have a write-ahead log (its mode is {mode!r}); "
                "put the file on a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(_CREATE_IDENTITIES)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """The file is this writer's alone until the end, which keeps all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")
        raise


def purge(connection: sqlite3.Connection, path: Path) -> list[str]:
    """Write the file again without what deleted rows have left in free pages, and empty the
    write-ahead log. Returns where they may still be."""
    connection.execute("VACUUM")
    ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return [f"{path}-wal, until its readers have ended"] if is_busy else []


def explain(error: sqlite3.Error | OSError, doing: str, path: Path) -> StoreError:
    return StoreError(f"cannot {doing} {path}: {error}{_hint(str(error))}")


def _hint(cause: str) -> str:
    if "full" in cause or "disk I/O" in cause:
        return "; nothing of the batch was kept: make room on the disk and start again"
    if "locked" in cause or "busy" in cause:
        return f"; another process has been writing to it for {BUSY_SECONDS_MAX:.0f} seconds"
    if "unable to open" in cause or "readonly" in cause:
        return "; check that its directory exists and may be written to"
    return "; nothing of the batch was kept"


def fit(connection: sqlite3.Connection, layout: Layout) -> None:
    """Create the table, or check that it fits; within the caller's transaction."""
    name = layout.table.name
    found = list(connection.execute(f"PRAGMA table_info({quote(name)})"))
    if not found:
        for statement in create_statements(layout):
            connection.execute(statement)
        forget_identity(connection, name)
    else:
        check_columns(layout, found, is_strict=_is_strict(connection, name))
        if layout.table.mode == "upsert":
            _check_key(connection, layout)
    identify(connection, name)


def identify(connection: sqlite3.Connection, name: str) -> str:
    """The identity of a table, given to it now if it has none."""
    known = identity(connection, name) or uuid.uuid4().hex
    if _is_view(connection, name):
        connection.execute(f"INSERT OR IGNORE INTO {IDENTITIES_TABLE} VALUES (?, ?)", (name, known))
    elif not identity_indexes(connection, name):
        index = quote(f"{_IDENTITY_INDEX}{known}")
        connection.execute(f"CREATE INDEX {index} ON {quote(name)} (1) WHERE 0")
        forget_identity(connection, name)
    return known


def identity(connection: sqlite3.Connection, name: str) -> str | None:
    """A table that was dropped and created again has another one; None for an unknown table."""
    indexes = identity_indexes(connection, name)
    if indexes:
        return indexes[0].removeprefix(_IDENTITY_INDEX)
    statement = f"SELECT identity FROM {IDENTITIES_TABLE} WHERE name = ?"
    found = connection.execute(statement, (name,)).fetchone()
    return None if found is None else str(found[0])


def identity_indexes(connection: sqlite3.Connection, name: str) -> list[str]:
    """The names of the indexes of a table that stand for its identity: one, or none."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = ? COLLATE NOCASE "
        "AND name LIKE ?",
        (name, f"{_IDENTITY_INDEX}%"),
    )
    return [str(index) for (index,) in found]


def forget_identity(connection: sqlite3.Connection, name: str) -> None:
    """That of a table that is no longer there, if it is not dropped with the table."""
    connection.execute(f"DELETE FROM {IDENTITIES_TABLE} WHERE name = ?", (name,))


def _is_view(connection: sqlite3.Connection, name: str) -> bool:
    statement = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = ? COLLATE NOCASE"
    return bool(connection.execute(statement, (name,)).fetchall())


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
                f"rows, which needs {wanted}; cast it, or write to a new table"
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


def bound(value: Any) -> Any:
    """A value of Arrow as `python_values` binds it, for a comparison with what is stored."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")  # UTC, as Arrow has it
    return value.isoformat() if isinstance(value, date) else value


def restored(value: Any, column: Column) -> Any:
    """A stored value as the column's kind has it, where SQLite has none of that kind. What
    something else wrote there in another form stays as it is."""
    if column.kind == "boolean" and value in (0, 1):
        return bool(value)
    if column.kind in ("timestamp", "timestamp_ntz") and isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        return moment.replace(tzinfo=UTC) if column.kind == "timestamp" else moment
    return value


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
