"""Tables of SQLite: rows and positions change in one transaction.

    millstream_positions
        sink, topic, partition    which sink, which partition
        topic_id, next_offset     the position
        leader_epoch, record_timestamp   of the record before it; -1 if they are not known
        target                    the identity of the table that the rows went to
        written_at                the time of the last write, UTC

A position counts only as long as its table has the same identity: a table that was dropped is
filled from the beginning of the topic again. The identity is in the name of an index of the table,
so that it is dropped with the table and copied with the file.

SQLite goes on writing to a file that was deleted or replaced by another one, which nobody reads. So
the sink compares the file with that of the path before each write, and opens it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from millstream.connect.sinks.changes import DELETED, Key, Row, keyed
from millstream.connect.sinks.positions import Place, Position, PositionMoved, check_steps
from millstream.connect.sinks.sink import (
    REBUILD_SUFFIX,
    Part,
    Sink,
    SinkUnavailable,
    Target,
    Write,
    refuse_replaced,
)
from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import Layout, layout_of, quote, quoted
from millstream.connect.tables.spec import POSITIONS_TABLE, TableSpec
from millstream.connect.tables.sqlite_tables import (
    apply,
    bound,
    explain,
    fit,
    forget_identity,
    identity,
    open_database,
    purge,
    restored,
    transaction,
)

_CREATE_POSITIONS = f"""
    CREATE TABLE IF NOT EXISTS {POSITIONS_TABLE} (
        sink TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        topic_id TEXT NOT NULL, next_offset INTEGER NOT NULL, target TEXT NOT NULL,
        written_at TEXT NOT NULL, leader_epoch INTEGER NOT NULL DEFAULT -1,
        record_timestamp INTEGER NOT NULL DEFAULT -1, PRIMARY KEY (sink, topic, partition)
    ) WITHOUT ROWID"""
# Tables of earlier versions do not have the last two columns.
_ADD_COLUMNS = [
    f"ALTER TABLE {POSITIONS_TABLE} ADD COLUMN {name} INTEGER NOT NULL DEFAULT -1"
    for name in ("leader_epoch", "record_timestamp")
]
_INSERT = (
    f"INSERT INTO {POSITIONS_TABLE} (sink, topic, partition, topic_id, next_offset, leader_epoch, "
    "record_timestamp, target, written_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, datetime('now')) "
    "ON CONFLICT DO UPDATE SET topic_id = excluded.topic_id, next_offset = excluded.next_offset, "
    "leader_epoch = excluded.leader_epoch, record_timestamp = excluded.record_timestamp, "
    "target = excluded.target, written_at = excluded.written_at"
)


def layouts_of(targets: Sequence[Target]) -> dict[str, Layout]:
    """By topic; `DELETED` marks deleted rows."""
    import pyarrow as pa

    layouts = {}
    for target in targets:
        assert target.columns is not None
        schema = target.columns.append(pa.field(DELETED, pa.bool_()))
        layouts[target.topic] = layout_of(
            schema, TableSpec(target.table, target.key, "upsert", DELETED)
        )
    return layouts


class SqliteSink(Sink):
    """Tables in one file. A subclass stores documents in another way."""

    may_write_again = True

    def __init__(self, path: Path, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and number of the file that is open
        self._identities: dict[str, str] = {}  # by topic
        self._replaced: list[str] = []  # tables whose rows are not those of their positions

    def open(self) -> None:
        self.close()
        self._connect()
        self._replaced = []
        with self._transaction() as connection:
            for target in self.targets:
                self._create(connection, target)
                self._identities[target.topic] = self._identity(connection, target)
                self._forget_dropped(connection, target)

    def positions(self) -> dict[Place, Position]:
        refuse_replaced(self._replaced, self.name)
        with self._reporting("read the positions in"):
            return self._stored(self._opened())

    def apply(self, write: Write) -> None:
        with self._transaction() as connection:
            check_steps(write.steps, self._stored(connection))
            for target in self.targets:
                part = write.parts.get(target.topic)
                if part is not None:
                    if self._identity(connection, target) != self._identities[target.topic]:
                        raise PositionMoved(f"table {target.table} was created again")
                    self._write(connection, target, part)
            self._store(connection, {place: after for place, _, after in write.steps})

    def written_at(self, target: Target) -> float | None:
        with self._reporting("read the positions in"):
            ((found,),) = self._opened().execute(
                f"SELECT strftime('%s', max(written_at)) FROM {POSITIONS_TABLE} "
                "WHERE sink = ? AND topic = ?",
                (self.name, target.topic),
            )
        return None if found is None else float(found)

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        from millstream.connect.sinks.columns import typed_keys

        layout = self._layouts()[target.topic]
        condition = " AND ".join(f"{quote(it.name)} = ?" for it in layout.key)
        statement = f"SELECT {quoted(layout.columns)} FROM {quote(target.table)} WHERE {condition}"
        found = {}
        with self._reporting("read rows of"):
            for values, key in typed_keys(keys, target.columns, target.key).items():
                for row in self._opened().execute(statement, [bound(it) for it in values]):
                    found[key] = _row(row, layout)
        return found

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        layout = self._layouts()[target.topic]
        statement = f"SELECT {quoted(layout.columns)} FROM {quote(target.table)}"
        with self._reporting("read rows of"):
            for values in self._opened().execute(statement):
                yield keyed(_row(values, layout), target.key)

    def purge(self) -> list[str]:
        with self._reporting("vacuum"):
            return purge(self._opened(), self._path)

    def rest(self) -> None:
        self._check_file()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rebuilt(self) -> SqliteSink:
        targets = [replace(it, table=it.table + REBUILD_SUFFIX) for it in self.targets]
        sink = type(self)(self._path, self.name + REBUILD_SUFFIX, targets)
        sink._drop()
        return sink

    def switch(self, rebuilt: Sink) -> None:
        assert isinstance(rebuilt, SqliteSink)
        with self._transaction() as connection:
            for target, other in zip(self.targets, rebuilt.targets, strict=True):
                self._replace(connection, target, other)
            connection.execute(f"DELETE FROM {POSITIONS_TABLE} WHERE sink = ?", (self.name,))
            self._store(connection, rebuilt._stored(connection))
        rebuilt._drop()

    # The tables; a subclass has others

    def _create(self, connection: sqlite3.Connection, target: Target) -> None:
        fit(connection, self._layouts()[target.topic])

    def _write(self, connection: sqlite3.Connection, target: Target, part: Part) -> None:
        layout = self._layouts()[target.topic]
        if part.changes.clear:
            connection.execute(f"DELETE FROM {quote(target.table)}")
        if part.rows is not None and part.rows.num_rows:
            apply(connection, make_ready(part.rows, layout), layout)

    def _replace(self, connection: sqlite3.Connection, target: Target, other: Target) -> None:
        columns = quoted(self._layouts()[target.topic].columns)
        connection.execute(f"DELETE FROM {quote(target.table)}")
        connection.execute(
            f"INSERT INTO {quote(target.table)} ({columns}) "
            f"SELECT {columns} FROM {quote(other.table)}"
        )

    def _drop_target(self, connection: sqlite3.Connection, target: Target) -> None:
        connection.execute(f"DROP TABLE IF EXISTS {quote(target.table)}")

    def _identity(self, connection: sqlite3.Connection, target: Target) -> str:
        return identity(connection, target.table) or ""

    def _layouts(self) -> Mapping[str, Layout]:
        if not hasattr(self, "_known_layouts"):
            self._known_layouts = layouts_of(self.targets)
        return self._known_layouts

    # The file

    def _connect(self) -> None:
        with self._reporting("open"):
            self._connection = open_database(self._path)
            self._file = self._file_there()
        with self._transaction() as connection:
            connection.execute(_CREATE_POSITIONS)
            columns = connection.execute(f"PRAGMA table_info({POSITIONS_TABLE})").fetchall()
            if not any(name == "leader_epoch" for _, name, *_ in columns):
                for statement in _ADD_COLUMNS:
                    connection.execute(statement)

    def _drop(self) -> None:
        """Delete the tables and their positions."""
        was_open = self._connection is not None
        if not was_open:
            self._connect()
        with self._transaction() as connection:
            for target in self.targets:
                self._drop_target(connection, target)
                forget_identity(connection, target.table)
            connection.execute(f"DELETE FROM {POSITIONS_TABLE} WHERE sink = ?", (self.name,))
        if not was_open:
            self.close()

    def _file_there(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        if self._file_there() != self._file:
            raise SinkUnavailable(f"{self._path} was deleted or replaced by another file")

    def _forget_dropped(self, connection: sqlite3.Connection, target: Target) -> None:
        """Remove the positions of a table that was dropped, if the new one is empty: else it is
        not known which rows it has."""
        others = f"FROM {POSITIONS_TABLE} WHERE sink = ? AND topic = ? AND target <> ?"
        names = (self.name, target.topic, self._identities[target.topic])
        if not connection.execute(f"SELECT 1 {others}", names).fetchall():
            return
        if connection.execute(f"SELECT 1 FROM {quote(target.table)} LIMIT 1").fetchall():
            self._replaced.append(target.table)
        else:
            connection.execute(f"DELETE {others}", names)

    def _store(self, connection: sqlite3.Connection, positions: Mapping[Place, Position]) -> None:
        rows = [
            (self.name, *place, *position, self._identities[place.topic])
            for place, position in positions.items()
        ]
        connection.executemany(_INSERT, rows)

    def _stored(self, connection: sqlite3.Connection) -> dict[Place, Position]:
        found = connection.execute(
            "SELECT topic, partition, target, topic_id, next_offset, leader_epoch, "
            f"record_timestamp FROM {POSITIONS_TABLE} WHERE sink = ?",
            (self.name,),
        )
        return {
            Place(topic, partition): Position(*position)
            for topic, partition, target, *position in found
            if target == self._identities.get(topic)
        }

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "open() first"
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reporting("write to"):
            connection = self._opened()
            self._check_file()
            with transaction(connection):
                yield connection

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            problem = explain(error, doing, self._path)
            if "no such table" in str(error) or "locked" in str(error):  # dropped: create it
                raise SinkUnavailable(str(problem)) from error
            raise problem from error


def _row(values: Sequence[Any], layout: Layout) -> Row:
    """In the form of JSON."""
    from millstream.connect.sinks.columns import to_json

    pairs = zip(values, layout.columns, strict=True)
    return {column.name: to_json(restored(it, column)) for it, column in pairs}
