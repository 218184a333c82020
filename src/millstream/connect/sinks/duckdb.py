"""Tables of DuckDB: a warehouse in a file. Rows and positions change in one transaction.

DuckDB lets one process at a time open a file for writing, and none read it meanwhile. So the sink
closes it whenever it has applied all records; while another process has it open, the sink waits.

Tables have no key index: rows of a batch are deleted by their keys and inserted, in whole columns.
The identity of a table is in its comment, which a dropped table does not keep.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from millstream.connect.sinks.changes import Key, Row, keyed
from millstream.connect.sinks.parquet import sync
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
from millstream.connect.sinks.sqlite import layouts_of
from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import Layout, quote, quoted
from millstream.connect.tables.spec import POSITIONS_TABLE
from millstream.errors import ConfigError, SchemaMismatch, StoreError

_CREATE_POSITIONS = f"""
    CREATE TABLE IF NOT EXISTS {POSITIONS_TABLE} (
        sink VARCHAR, topic VARCHAR, partition INTEGER, topic_id VARCHAR, next_offset BIGINT,
        target VARCHAR, written_at TIMESTAMPTZ, leader_epoch INTEGER DEFAULT -1,
        record_timestamp BIGINT DEFAULT -1, PRIMARY KEY (sink, topic, partition)
    )"""
# Tables of earlier versions do not have the last two columns.
_ADD_COLUMNS = [
    f"ALTER TABLE {POSITIONS_TABLE} ADD COLUMN IF NOT EXISTS {name} BIGINT DEFAULT -1"
    for name in ("leader_epoch", "record_timestamp")
]
_COMMENT = "millstream "
_INCOMING = "millstream_incoming"
_PAGE = 10_000

_CONNECTING = threading.Lock()


def connect(path: Path) -> Any:
    """Open the file, one thread at a time.

    Connections of a process to one file share a database. DuckDB 2.0 hands it to a second thread
    before the first has prepared it ("Table Function python_arrow_scan does not exist"), and opens
    it a second time ("Unique file handle conflict").
    """
    import duckdb

    with _CONNECTING:
        return duckdb.connect(str(path))


class DuckdbSink(Sink):
    """Tables in one file."""

    may_write_again = True

    def __init__(self, path: Path, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        self._path = path
        self._layouts = layouts_of(targets)
        self._identities: dict[str, str] = {}  # by topic
        self._replaced: list[str] = []  # tables whose rows are not those of their positions
        self._connection: Any = None

    def open(self) -> None:
        self.close()
        self._replaced = []
        with self._transaction() as connection:
            connection.execute(_CREATE_POSITIONS)
            for statement in _ADD_COLUMNS:
                connection.execute(statement)
            for target in self.targets:
                self._fit(connection, target)
                self._identities[target.topic] = _identity(connection, target.table) or ""
                self._forget_dropped(connection, target)

    def positions(self) -> dict[Place, Position]:
        refuse_replaced(self._replaced, self.name)
        with self._transaction() as connection:
            return self._stored(connection)

    def apply(self, write: Write) -> None:
        with self._transaction() as connection:
            check_steps(write.steps, self._stored(connection))
            for target in self.targets:
                part = write.parts.get(target.topic)
                if part is not None:
                    if _identity(connection, target.table) != self._identities[target.topic]:
                        raise PositionMoved(f"table {target.table} was created again")
                    self._write(connection, self._layouts[target.topic], part)
            for place, _, after in write.steps:
                self._store(connection, place, after)

    def written_at(self, target: Target) -> float | None:
        with self._transaction() as connection:
            found = connection.execute(
                f"SELECT epoch(max(written_at)) FROM {POSITIONS_TABLE} "
                "WHERE sink = ? AND topic = ?",
                [self.name, target.topic],
            ).fetchall()
        return None if found[0][0] is None else float(found[0][0])

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        from millstream.connect.sinks.columns import typed_keys

        layout = self._layouts[target.topic]
        condition = " AND ".join(f"{quote(it.name)} = ?" for it in layout.key)
        statement = f"SELECT {quoted(layout.columns)} FROM {quote(target.table)} WHERE {condition}"
        found = {}
        with self._transaction() as connection:
            for values, key in typed_keys(keys, target.columns, target.key).items():
                for row in _rows(connection.sql(statement, params=list(values)), target):
                    found[key] = row
        return found

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        layout = self._layouts[target.topic]
        statement = f"SELECT {quoted(layout.columns)} FROM {quote(target.table)}"
        with self._transaction() as connection:
            for row in _rows(connection.sql(statement), target):
                yield keyed(row, target.key)

    def purge(self) -> list[str]:
        """DuckDB keeps the blocks of deleted rows until it writes over them, so the file is copied,
        and the copy takes its place while it is still ours alone."""
        copy = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        try:
            with self._transaction():
                pass  # opened, or waited for
            connection = self._connection
            connection.execute("FORCE CHECKPOINT")
            (name,) = connection.execute("SELECT current_database()").fetchone()
            location = str(copy).replace("'", "''")
            connection.execute(f"ATTACH '{location}' AS millstream_copy")
            connection.execute(f"COPY FROM DATABASE {quote(name)} TO millstream_copy")
            connection.execute("DETACH millstream_copy")
            sync(copy)
            copy.rename(self._path)
            sync(self._path.parent)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written again: {error}") from error
        finally:
            copy.unlink(missing_ok=True)
            self.close()
        return []

    def rest(self) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()  # rolls back what is not committed
            self._connection = None

    def rebuilt(self) -> DuckdbSink:
        targets = [replace(it, table=it.table + REBUILD_SUFFIX) for it in self.targets]
        sink = DuckdbSink(self._path, self.name + REBUILD_SUFFIX, targets)
        with sink._transaction() as connection:
            sink._drop(connection)
        return sink

    def switch(self, rebuilt: Sink) -> None:
        assert isinstance(rebuilt, DuckdbSink)
        with self._transaction() as connection:
            for target, other in zip(self.targets, rebuilt.targets, strict=True):
                columns = quoted(self._layouts[target.topic].columns)
                connection.execute(f"DELETE FROM {quote(target.table)}")
                connection.execute(
                    f"INSERT INTO {quote(target.table)} ({columns}) "
                    f"SELECT {columns} FROM {quote(other.table)}"
                )
            connection.execute(f"DELETE FROM {POSITIONS_TABLE} WHERE sink = ?", [self.name])
            for place, position in rebuilt._stored(connection).items():
                self._store(connection, place, position)
            rebuilt._drop(connection)

    def _fit(self, connection: Any, target: Target) -> None:
        layout = self._layouts[target.topic]
        assert target.columns is not None
        connection.register(_INCOMING, target.columns.remove_metadata().empty_table())
        wanted = _described(connection, _INCOMING)
        found = _described(connection, quote(target.table)) if _exists(connection, target) else None
        if found is None:
            connection.execute(f"CREATE TABLE {quote(target.table)} AS FROM {_INCOMING}")
        else:
            for column in layout.columns:
                kind, needed = found.get(column.name), wanted[column.name]
                if kind != needed:
                    raise SchemaMismatch(
                        f"table {target.table!r}: column {column.name!r} is {kind or 'missing'} "
                        f"there, and the rows need {needed}; alter the table, or drop it"
                    )
        connection.unregister(_INCOMING)
        if _identity(connection, target.table) is None:
            connection.execute(
                f"COMMENT ON TABLE {quote(target.table)} IS '{_COMMENT}{uuid.uuid4().hex}'"
            )

    def _write(self, connection: Any, layout: Layout, part: Part) -> None:
        table = quote(layout.table.name)
        if part.changes.clear:
            connection.execute(f"DELETE FROM {table}")
        if part.rows is None or not part.rows.num_rows:
            return
        rows = make_ready(part.rows, layout)
        same = " AND ".join(f"t.{quote(it.name)} = s.{quote(it.name)}" for it in layout.key)
        connection.register(_INCOMING, rows.table)
        connection.execute(f"DELETE FROM {table} AS t USING {_INCOMING} AS s WHERE {same}")
        connection.unregister(_INCOMING)
        columns = quoted(layout.columns)
        connection.register(_INCOMING, rows.kept())
        connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {_INCOMING}")
        connection.unregister(_INCOMING)

    def _forget_dropped(self, connection: Any, target: Target) -> None:
        """Remove the positions of a table that was dropped, if the new one is empty: else it is
        not known which rows it has."""
        others = f"FROM {POSITIONS_TABLE} WHERE sink = ? AND topic = ? AND target <> ?"
        names = [self.name, target.topic, self._identities[target.topic]]
        if not connection.execute(f"SELECT 1 {others}", names).fetchall():
            return
        if connection.execute(f"FROM {quote(target.table)} LIMIT 1").fetchall():
            self._replaced.append(target.table)
        else:
            connection.execute(f"DELETE {others}", names)

    def _store(self, connection: Any, place: Place, position: Position) -> None:
        connection.execute(
            f"INSERT OR REPLACE INTO {POSITIONS_TABLE} (sink, topic, partition, topic_id, "
            "next_offset, leader_epoch, record_timestamp, target, written_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, now())",
            [self.name, *place, *position, self._identities[place.topic]],
        )

    def _stored(self, connection: Any) -> dict[Place, Position]:
        found = connection.execute(
            "SELECT topic, partition, target, topic_id, next_offset, leader_epoch, "
            f"record_timestamp FROM {POSITIONS_TABLE} WHERE sink = ?",
            [self.name],
        ).fetchall()
        return {
            Place(topic, partition): Position(*position)
            for topic, partition, target, *position in found
            if target == self._identities.get(topic)
        }

    def _drop(self, connection: Any) -> None:
        for target in self.targets:
            connection.execute(f"DROP TABLE IF EXISTS {quote(target.table)}")
        connection.execute(f"DELETE FROM {POSITIONS_TABLE} WHERE sink = ?", [self.name])

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            import duckdb
        except ImportError as error:
            raise ConfigError("DuckDB needs: pip install 'millstream[duckdb]'") from error
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._connection is None:
                self._connection = connect(self._path)
            try:
                self._connection.execute("BEGIN")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self.close()
                raise
        except duckdb.IOException as error:
            raise SinkUnavailable(f"{self._path} cannot be opened or written: {error}") from error
        except duckdb.Error as error:
            passes = (
                duckdb.CatalogException,  # a table was dropped: open() creates it
                duckdb.TransactionException,  # another thread was faster
                duckdb.ConstraintException,  # the same, with its first position
            )
            if isinstance(error, passes) or "In Use" in str(error):
                raise SinkUnavailable(f"{self._path}: {error}") from error
            raise StoreError(f"{self._path}: {error}; nothing of the batch was kept") from error


def _rows(relation: Any, target: Target) -> Iterator[Row]:
    """In the form of JSON. By way of Arrow: for times with a zone, DuckDB's own rows need pytz."""
    import pyarrow as pa

    from millstream.connect.sinks.columns import to_json

    assert target.columns is not None
    columns = target.columns.remove_metadata()
    for batch in relation.to_arrow_reader(_PAGE):
        for row in pa.Table.from_batches([batch]).cast(columns).to_pylist():
            yield {name: to_json(it) for name, it in row.items()}


def _exists(connection: Any, target: Target) -> bool:
    found = connection.execute(
        "SELECT 1 FROM duckdb_tables() WHERE table_name = ? AND schema_name = current_schema()",
        [target.table],
    ).fetchall()
    return bool(found)


def _described(connection: Any, table: str) -> dict[str, str]:
    return {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE {table}").fetchall()}


def _identity(connection: Any, table: str) -> str | None:
    found = connection.execute(
        "SELECT comment FROM duckdb_tables() "
        "WHERE table_name = ? AND schema_name = current_schema()",
        [table],
    ).fetchall()
    comment = found[0][0] if found else None
    return str(comment) if comment and str(comment).startswith(_COMMENT) else None
