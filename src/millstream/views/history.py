"""The history of a view: for each stamp, the rows as they were before its batch changed them.

Triggers of the database write it, in the transaction of the batch, so it has whatever changes the
table. The first change of a row by a batch counts: what it was before the batch.

    millstream_number    the batch that changed the row
    millstream_existed   whether the row was there before
    the view's columns   the row before; of a row that was not there, only its key

A view at an earlier stamp is its table without the rows that have changed since, and these rows as
they were before the first of those changes (`relations.py`). Rows that belong to stamps which are
no longer kept are deleted with every batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.connect.tables.schema import Column, quote, quoted
from millstream.connect.tables.spec import STAMPS_TABLE
from millstream.connect.tables.sqlite_tables import column_type
from millstream.views.spec import EXISTED, NUMBER

SUFFIX = "__history"


def sqlite_history(table: str, columns: Sequence[Column], key: Sequence[Column]) -> list[str]:
    """Statements that create the table and its index."""
    history = quote(table + SUFFIX)
    lines = [f"{NUMBER} INTEGER NOT NULL", f"{EXISTED} INTEGER NOT NULL"]
    lines += [f"{quote(it.name)} {column_type(it)}" for it in columns]
    lines.append(f"PRIMARY KEY ({quoted(key)}, {NUMBER})")
    return [
        f"CREATE TABLE {history} ({', '.join(lines)}) WITHOUT ROWID",
        f"CREATE INDEX {quote(table + SUFFIX + ' by number')} ON {history} ({NUMBER})",
    ]


def sqlite_triggers(
    table: str, query: str, columns: Sequence[Column], key: Sequence[Column]
) -> dict[str, str]:
    """The statements that create triggers, by the triggers' names."""
    number = _number(STAMPS_TABLE, query)
    history = quote(table + SUFFIX)
    made = {}
    for event, row, existed, kept in (
        ("INSERT", "NEW", 0, key),
        ("UPDATE", "OLD", 1, columns),
        ("DELETE", "OLD", 1, columns),
    ):
        name = f"{table}__{event.lower()}"
        values = ", ".join(f"{row}.{quote(it.name)}" for it in kept)
        made[name] = (
            f"CREATE TRIGGER {quote(name)} AFTER {event} ON {quote(table)} BEGIN "
            f"INSERT INTO {history} ({NUMBER}, {EXISTED}, {quoted(kept)}) "
            f"VALUES ({number}, {existed}, {values}) ON CONFLICT DO NOTHING; END"
        )
    return made


def postgres_history(
    table: str, history: str, columns: Sequence[Column], key: Sequence[Column]
) -> list[str]:
    """Statements that create the table; names are quoted and qualified."""
    return [
        f"CREATE TABLE {history} AS SELECT 0::bigint AS {NUMBER}, true AS {EXISTED}, "
        f"{quoted(columns)} FROM {table} WITH NO DATA",
        f"ALTER TABLE {history} ADD PRIMARY KEY ({quoted(key)}, {NUMBER})",
        f"CREATE INDEX ON {history} ({NUMBER})",
    ]


def postgres_triggers(
    table: str, history: str, stamps: str, query: str, columns: Sequence[Column],
    key: Sequence[Column],
) -> list[str]:  # fmt: skip
    """Statements that create or replace the triggers, one call of each per statement."""
    number = _number(stamps, query)
    statements = []
    for event, rows, existed, kept in (
        ("INSERT", "NEW", "false", key),
        ("UPDATE", "OLD", "true", columns),
        ("DELETE", "OLD", "true", columns),
    ):
        function = trigger_function(history, event)
        statements += [
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$millstream$ BEGIN INSERT INTO {history} ({NUMBER}, {EXISTED}, {quoted(kept)}) "
            f"SELECT {number}, {existed}, {quoted(kept)} FROM changed ON CONFLICT DO NOTHING; "
            "RETURN NULL; END $millstream$",
            f"CREATE OR REPLACE TRIGGER millstream_{event.lower()} AFTER {event} ON {table} "
            f"REFERENCING {rows} TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        ]
    return statements


def trigger_function(history: str, event: str) -> str:
    """The function of a trigger in PostgreSQL."""
    return f'{history[:-1]}_{event.lower()}"'


def _number(stamps: str, query: str) -> str:
    literal = "'" + query.replace("'", "''") + "'"
    return f"(SELECT coalesce(max(number), 0) FROM {stamps} WHERE query = {literal})"
