"""Whether a table is still the one that a query or a sink has written to.

A table that was dropped and created again lacks what came before. So the identities of tables are
stored with the progress of a query, or the positions of a sink:

    SQLite       a random id, which an index of the table has in its name (`sqlite_tables.py`)
    PostgreSQL   NUMBER/STORE/ID: the oids of the table and of the table that this is stored in, and
                 a random id, which is in the comment of the table

Index and comment are dropped with their table, and are part of a copy of the database. Tables of a
restored dump have other numbers. So numbers are compared only if the table with the progress or the
positions still has the same one, and ids otherwise. Numbers are stricter: a table that was restored
by itself has its id, but may lack batches that are in the progress.

Earlier builds stored the number only. A table that somebody else owns has no id: its comment
cannot be changed.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from millstream.connect.tables.postgres_tables import table_name
from millstream.connect.tables.spec import PROGRESS_TABLE, TableSpec

if TYPE_CHECKING:
    import psycopg

_LOCK_WAIT_MS = 200
_FIND = """
    SELECT found.oid::oid::text, to_regclass(%s)::oid::text, coalesce(comment, ''),
           coalesce(substring(comment FROM '\\[millstream ([0-9a-f]{32})\\]'), '')
    FROM to_regclass(%s) AS found(oid), obj_description(found.oid, 'pg_class') AS comment
    WHERE found.oid IS NOT NULL"""


def is_same_table(known: str | None, found: str | None) -> bool:
    """Whether the identity that is found is that of the table that was known."""
    if known is None or found is None:
        return False
    if "/" not in found:
        return known == found
    number, store, identity = found.split("/")
    known_number, _, known_rest = known.partition("/")
    known_store, _, known_identity = known_rest.partition("/")
    if known_store in ("", store):
        return known_number == number
    return identity != "" and known_identity == identity


def postgres_identity(
    connection: psycopg.Connection, name: str, stored_in: str = PROGRESS_TABLE
) -> str | None:
    """The identity of a table, by its quoted name; None if it does not exist."""
    found = connection.execute(_FIND, (stored_in, name)).fetchone()
    return None if found is None else f"{found[0]}/{found[1]}/{found[3]}"


def identify(connection: psycopg.Connection, table: TableSpec) -> None:
    """Add an id to the comment of a table, if it has none and can be changed now."""
    import psycopg

    name = table_name(table)
    found = connection.execute(_FIND, (PROGRESS_TABLE, name)).fetchone()
    if found is None or found[3]:
        return
    comment = f"{found[2]} [millstream {uuid.uuid4().hex}]".lstrip()
    literal = psycopg.sql.Literal(comment).as_string(connection)
    obstacles = (
        psycopg.errors.InsufficientPrivilege,  # it belongs to somebody else
        psycopg.errors.WrongObjectType,  # it is a view
        psycopg.errors.LockNotAvailable,  # by VACUUM, perhaps for hours: the next run tries again
    )
    with suppress(*obstacles), connection.transaction():  # a savepoint
        (before,) = connection.execute("SHOW lock_timeout").fetchone() or ("0",)
        connection.execute(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
        connection.execute(f"COMMENT ON TABLE {name} IS {literal}")
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (before,))
