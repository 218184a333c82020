"""Rows for tables of PostgreSQL, within the caller's transaction: find, create, stage and merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.connect.tables.copy_format import copy_stream
from millstream.connect.tables.postgres_tables import (
    FIND_COLUMNS,
    FIND_UNIQUE_KEYS,
    FoundTable,
    check_table,
    create_statements,
    staging_columns,
    table_name,
)
from millstream.connect.tables.rows import Rows
from millstream.connect.tables.schema import Layout
from millstream.connect.tables.spec import TableSpec

if TYPE_CHECKING:
    import psycopg

CREATION_LOCK = 0x6D696C6C73747265  # "millstre": two runs that create the same table take turns


def fit(connection: psycopg.Connection, layout: Layout) -> FoundTable:
    """Create the table, or check that it fits."""
    connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
    found = find_table(connection, layout.table)
    if found is None:
        for statement in create_statements(layout):
            connection.execute(statement)
        found = find_table(connection, layout.table)
        assert found is not None
    check_table(layout, found)
    return found


def find_table(connection: psycopg.Connection, spec: TableSpec) -> FoundTable | None:
    name = (table_name(spec),)
    columns: list[Any] = connection.execute(FIND_COLUMNS, name).fetchall()
    if not columns:
        return None
    keys = connection.execute(FIND_UNIQUE_KEYS, name).fetchall()
    return FoundTable(
        types={column: kind for column, kind, *_ in columns},
        required=tuple(column for column, _, required, _ in columns if required),
        filled={column: cure for column, _, _, cure in columns if cure is not None},
        unique_keys=tuple(frozenset(names) for (names,) in keys),
    )


def stage_rows(connection: psycopg.Connection, name: str, rows: Rows, layout: Layout) -> str:
    """Copy rows into a temporary table that lives in this transaction; returns its full name."""
    connection.execute(f"CREATE TEMPORARY TABLE {name} ({staging_columns(layout)}) ON COMMIT DROP")
    copy_rows(connection, f"pg_temp.{name}", rows, layout)
    return f"pg_temp.{name}"


def copy_rows(connection: psycopg.Connection, name: str, rows: Rows, layout: Layout) -> None:
    with connection.cursor().copy(f"COPY {name} FROM STDIN (FORMAT BINARY)") as copy:
        for piece in copy_stream(rows, layout):
            copy.write(piece)
