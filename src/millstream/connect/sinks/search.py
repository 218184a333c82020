"""A search index in a file: SQLite's FTS5, without a server or a dependency.

Each topic has a table that is searched. The rowid of a document is its key, if that is a whole
number; other keys have a negative one from a second table:

    products        fts5(key UNINDEXED, title, body, price UNINDEXED)
    products_keys   id INTEGER PRIMARY KEY, key TEXT UNIQUE     id is the rowid in `products`

    SELECT key, title FROM products WHERE products MATCH 'red shoes' ORDER BY rank

Documents and positions change in one transaction, as in tables. The index keeps the text: deletes
from contentless tables need SQLite 3.43. FTS5 stores an index in tables of its own, which are
dropped with it; one of them, `products_config`, has the identity.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from millstream.connect.sinks.changes import Key, Row, document_id
from millstream.connect.sinks.sink import Part, Target
from millstream.connect.sinks.sqlite import SqliteSink
from millstream.connect.tables.schema import quote
from millstream.connect.tables.spec import IDENTITIES_TABLE
from millstream.connect.tables.sqlite_tables import forget_identity, identify, identity
from millstream.errors import SchemaMismatch


def keys_table(target: Target) -> str:
    return f"{target.table}_keys"


def config_table(target: Target) -> str:
    return f"{target.table}_config"


class SearchSink(SqliteSink):
    """Full-text indexes in one file."""

    def _create(self, connection: sqlite3.Connection, target: Target) -> None:
        wanted = ["key", *target.fields, *target.stored]
        info = connection.execute(f"PRAGMA table_info({quote(target.table)})")
        found = [str(name) for _, name, *_ in info]
        if not found:
            columns = [
                "key UNINDEXED",
                *map(quote, target.fields),
                *(f"{quote(name)} UNINDEXED" for name in target.stored),
            ]
            connection.execute(
                f"CREATE VIRTUAL TABLE {quote(target.table)} USING fts5({', '.join(columns)})"
            )
            connection.execute(f"DROP TABLE IF EXISTS {quote(keys_table(target))}")
            connection.execute(
                f"CREATE TABLE {quote(keys_table(target))} "
                "(id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL)"
            )
            forget_identity(connection, target.table)
        else:
            cure = "drop it, and the sink fills it from the beginning"
            if found != wanted:
                raise SchemaMismatch(
                    f"index {target.table!r} has the columns {found}, and the sink wants {wanted}; "
                    + cure
                )
            if self._has_old_keys(connection, target):
                raise SchemaMismatch(
                    f"index {target.table!r} was written by an older version of Millstream; {cure}"
                )
        # Earlier versions kept the identity by the name of the index.
        connection.execute(
            f"UPDATE OR REPLACE {IDENTITIES_TABLE} SET name = ? WHERE name = ?",
            (config_table(target), target.table),
        )
        identify(connection, config_table(target))

    def _identity(self, connection: sqlite3.Connection, target: Target) -> str:
        return identity(connection, config_table(target)) or ""

    def _has_old_keys(self, connection: sqlite3.Connection, target: Target) -> bool:
        """From a version in which all keys were in the second table."""
        statement = f"SELECT 1 FROM {quote(keys_table(target))} WHERE id > 0 LIMIT 1"
        return bool(connection.execute(statement).fetchall())

    def _write(self, connection: sqlite3.Connection, target: Target, part: Part) -> None:
        index, keys = quote(target.table), quote(keys_table(target))
        if part.changes.clear:
            connection.execute(f"DELETE FROM {index}")
            connection.execute(f"DELETE FROM {keys}")
        remaining = {document_id(key): row for key, row in part.changes.last_by_key().items()}
        gone = [key for key, row in remaining.items() if row is None]
        if gone:
            numbers = self._numbers(connection, target, gone)
            found = [(number,) for number in numbers.values()]
            connection.executemany(f"DELETE FROM {index} WHERE rowid = ?", found)
            connection.executemany(f"DELETE FROM {keys} WHERE id = ?", found)
        kept = {key: whole_number(key) for key, row in remaining.items() if row is not None}
        others = [key for key, number in kept.items() if number is None]
        if others:
            connection.executemany(
                f"INSERT INTO {keys} (id, key) "
                f"SELECT min(0, coalesce((SELECT min(id) FROM {keys}), 0)) - 1, ? WHERE true "
                "ON CONFLICT DO NOTHING",
                [(key,) for key in others],
            )
            kept |= self._numbers(connection, target, others)
        names = [*target.fields, *target.stored]
        columns = ", ".join(map(quote, names))
        places = ", ".join("?" * len(names))
        connection.executemany(
            f"INSERT OR REPLACE INTO {index} (rowid, key, {columns}) VALUES (?, ?, {places})",
            [
                (number, key, *[_text(row.get(name)) for name in names])
                for key, number in kept.items()
                if (row := remaining[key]) is not None
            ],
        )

    def _numbers(
        self, connection: sqlite3.Connection, target: Target, keys: Sequence[str]
    ) -> dict[str, int]:
        """The rowids of documents; unknown keys are left out."""
        statement = f"SELECT id FROM {quote(keys_table(target))} WHERE key = ?"
        found = {}
        for key in keys:
            number = whole_number(key)
            if number is None:
                for (number,) in connection.execute(statement, (key,)):
                    found[key] = number
            else:
                found[key] = number
        return found

    def purge(self) -> list[str]:
        """The index keeps words of deleted documents until its parts are merged."""
        with self._transaction() as connection:
            for target in self.targets:
                index = quote(target.table)
                connection.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
        return super().purge()

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        index, names = quote(target.table), [*target.fields, *target.stored]
        statement = f"SELECT {', '.join(map(quote, names))} FROM {index} WHERE rowid = ?"
        texts, found = {document_id(key): key for key in keys}, {}
        with self._reporting("read documents of"):
            connection = self._opened()
            for text, number in self._numbers(connection, target, list(texts)).items():
                for row in connection.execute(statement, (number,)):
                    found[texts[text]] = dict(zip(names, row, strict=True))
        return found

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        names = [*target.fields, *target.stored]
        statement = f"SELECT {', '.join(map(quote, ['key', *names]))} FROM {quote(target.table)}"
        with self._reporting("read documents of"):
            for key, *values in self._opened().execute(statement):
                own = [key] if len(target.key) == 1 else json.loads(key)
                row = dict(zip((*target.key, *names), (*own, *values), strict=True))
                yield str(key), row

    def _replace(self, connection: sqlite3.Connection, target: Target, other: Target) -> None:
        columns = ", ".join(map(quote, ["key", *target.fields, *target.stored]))
        index, keys = quote(target.table), quote(keys_table(target))
        connection.execute(f"DELETE FROM {index}")
        connection.execute(f"DELETE FROM {keys}")
        connection.execute(f"INSERT INTO {keys} SELECT * FROM {quote(keys_table(other))}")
        connection.execute(
            f"INSERT INTO {index} (rowid, {columns}) "
            f"SELECT rowid, {columns} FROM {quote(other.table)}"
        )

    def _drop_target(self, connection: sqlite3.Connection, target: Target) -> None:
        connection.execute(f"DROP TABLE IF EXISTS {quote(target.table)}")
        connection.execute(f"DROP TABLE IF EXISTS {quote(keys_table(target))}")


def whole_number(key: str) -> int | None:
    """The number that a key is, if a rowid can be it."""
    if key.isdecimal() and key.isascii() and len(key) < 19 and (key[0] != "0" or key == "0"):
        return int(key)
    return None


def _text(value: Any) -> Any:
    """Text, numbers and nulls as they are; anything else as JSON."""
    if type(value) is str:
        return value
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False)
