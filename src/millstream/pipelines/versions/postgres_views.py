"""Views of PostgreSQL that show one of several tables; a row names it.

    CREATE VIEW revenue AS
      SELECT day, total FROM revenue__v1
        WHERE (SELECT shown FROM millstream_shown WHERE name = 'revenue') = 'revenue__v1'
      UNION ALL
      SELECT day, total FROM revenue__v2
        WHERE (SELECT shown FROM millstream_shown WHERE name = 'revenue') = 'revenue__v2'

To replace a view, PostgreSQL waits for every transaction that has read it. To show another table of
a view that was prepared for it, one row is updated, and no reader is waited for: a statement, or a
transaction that is REPEATABLE READ, sees all views as of its snapshot. PostgreSQL evaluates the
condition once and does not scan the other tables.

Tables must have exactly the view's columns. A view of one table has no condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millstream.connect.tables.schema import quote
from millstream.connect.tables.spec import SHOWN_TABLE

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

CREATE_SHOWN = (
    f"CREATE TABLE IF NOT EXISTS {SHOWN_TABLE} (name TEXT PRIMARY KEY NOT NULL, "
    "shown TEXT NOT NULL)"
)


def quoted(name: str) -> str:
    """`sales.revenue` has a schema."""
    return ".".join(quote(part) for part in name.split(".", 1))


def definition(view: str, columns: Sequence[str], tables: Sequence[str]) -> str:
    names = ", ".join(quote(it) for it in columns)
    if len(tables) == 1:
        return f"SELECT {names} FROM {quoted(tables[0])}"
    shown = f"(SELECT shown FROM {SHOWN_TABLE} WHERE name = {_literal(view)})"
    return " UNION ALL ".join(
        f"SELECT {names} FROM {quoted(it)} WHERE {shown} = {_literal(it)}" for it in tables
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def typed_columns(execute: Execute, name: str) -> list[tuple[Any, ...]]:
    """Names and types, in order."""
    return execute(
        "SELECT attname::text, atttypid::bigint, atttypmod, attcollation::bigint "
        "FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped "
        "ORDER BY attnum",
        (quoted(name),),
    )


def relations_under(execute: Execute, view: str) -> set[int]:
    """The tables that a view is defined over, except that of the rows."""
    found = execute(
        "SELECT DISTINCT d.refobjid::bigint FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid "
        "AND d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass "
        "WHERE r.ev_class = to_regclass(?) AND d.refobjid <> r.ev_class "
        "AND d.refobjid <> to_regclass(?)",
        (quoted(view), SHOWN_TABLE),
    )
    return {oid for (oid,) in found}


def relations(execute: Execute, names: Sequence[str]) -> set[int]:
    found = [execute("SELECT to_regclass(?)::oid::bigint", (quoted(it),)) for it in names]
    return {oid for ((oid,),) in found if oid is not None}


def has_columns_of(execute: Execute, table: str, view: str) -> bool:
    return typed_columns(execute, table) == typed_columns(execute, view)


def put_row(execute: Execute, view: str, table: str) -> None:
    execute(
        f"INSERT INTO {SHOWN_TABLE} (name, shown) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET shown = excluded.shown",
        (view, table),
    )


def delete_row(execute: Execute, view: str) -> None:
    execute(f"DELETE FROM {SHOWN_TABLE} WHERE name = ?", (view,))
