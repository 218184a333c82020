"""Tables of PostgreSQL: rows and positions change in one transaction.

The transaction locks the sink's positions first, so that of two processes one waits, and then sees
what the other did. A commit whose answer was lost is found out the same way: the next attempt sees
the position behind it. The table of positions is that of SQLite (see `sqlite.py`), and the
identity of a table is described in `tables/identities.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.connect.sinks.changes import Key, Row, keyed
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
from millstream.connect.tables.identities import identify, is_same_table, postgres_identity
from millstream.connect.tables.postgres_connection import connect, explained, passes, purge
from millstream.connect.tables.postgres_rows import CREATION_LOCK, fit, stage_rows
from millstream.connect.tables.postgres_tables import FoundTable, Merge, check_names, table_name
from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import Layout, quoted
from millstream.connect.tables.spec import POSITIONS_TABLE

if TYPE_CHECKING:
    import psycopg

Result = TypeVar("Result")

_CREATE_POSITIONS = f"""
    CREATE TABLE IF NOT EXISTS {POSITIONS_TABLE} (
        sink text, topic text, partition int, topic_id text NOT NULL, next_offset bigint NOT NULL,
        target text NOT NULL, written_at timestamptz NOT NULL,
        leader_epoch int NOT NULL DEFAULT -1, record_timestamp bigint NOT NULL DEFAULT -1,
        PRIMARY KEY (sink, topic, partition)
    )"""
# Tables of earlier versions do not have the last two columns. An ALTER TABLE that changes nothing
# would wait for all readers.
_FIND_COLUMNS = (
    f"SELECT 1 FROM pg_attribute WHERE attrelid = '{POSITIONS_TABLE}'::regclass "
    "AND attname = 'leader_epoch'"
)
_ADD_COLUMNS = (
    f"ALTER TABLE {POSITIONS_TABLE} ADD COLUMN leader_epoch int NOT NULL DEFAULT -1, "
    "ADD COLUMN record_timestamp bigint NOT NULL DEFAULT -1"
)
_INSERT = (
    f"INSERT INTO {POSITIONS_TABLE} (sink, topic, partition, topic_id, next_offset, leader_epoch, "
    "record_timestamp, target, written_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, now()) "
    "ON CONFLICT (sink, topic, partition) DO UPDATE SET topic_id = excluded.topic_id, "
    "next_offset = excluded.next_offset, leader_epoch = excluded.leader_epoch, "
    "record_timestamp = excluded.record_timestamp, target = excluded.target, "
    "written_at = excluded.written_at"
)


class PostgresSink(Sink):
    """Tables in one database."""

    may_write_again = True

    def __init__(self, url: str, name: str, targets: Sequence[Target]) -> None:
        super().__init__(name, targets)
        self._url = url
        self._layouts: Mapping[str, Layout] = layouts_of(targets)
        self._found: dict[str, FoundTable] = {}
        self._identities: dict[str, str] = {}  # by topic
        self._replaced: list[str] = []  # tables whose rows are not those of their positions
        self._connection: psycopg.Connection | None = None

    def open(self) -> None:
        self.close()

        def prepare(connection: psycopg.Connection) -> None:
            self._replaced = []
            connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
            connection.execute(_CREATE_POSITIONS)
            if not connection.execute(_FIND_COLUMNS).fetchall():
                connection.execute(_ADD_COLUMNS)
            for topic, layout in self._layouts.items():
                check_names(layout)
                found = fit(connection, layout)
                self._layouts = {
                    **self._layouts,
                    topic: replace(layout, stays_in_order=found.decides_equality(layout)),
                }
                self._found[topic] = found
                identify(connection, layout.table)
                self._identities[topic] = _identity(connection, layout)
                self._forget_dropped(connection, topic, layout)

        self._run(prepare, "be used as a sink")

    def positions(self) -> dict[Place, Position]:
        refuse_replaced(self._replaced, self.name)
        return self._run(self._stored, "read positions")

    def apply(self, write: Write) -> None:
        def commit(connection: psycopg.Connection) -> None:
            # One writer at a time, also for partitions that have no position yet.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"sink {self.name}",)
            )
            check_steps(write.steps, self._stored(connection))
            for number, target in enumerate(self.targets):
                part = write.parts.get(target.topic)
                if part is not None:
                    self._write(connection, target, part, number)
            for place, _, after in write.steps:
                row = (self.name, *place, *after, self._identities[place.topic])
                connection.execute(_INSERT, row)

        self._run(commit, "write rows")

    def written_at(self, target: Target) -> float | None:
        statement = (
            "SELECT extract(epoch FROM max(written_at))::float8 "
            f"FROM {POSITIONS_TABLE} WHERE sink = %s AND topic = %s"
        )

        def find(connection: psycopg.Connection) -> float | None:
            names = (self.name, target.topic)
            ((found,),) = connection.execute(statement, names).fetchall()
            return found  # type: ignore[no-any-return]

        return self._run(find, "read positions")

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        from millstream.connect.sinks.columns import to_json, typed_keys

        layout = self._layouts[target.topic]
        condition = " AND ".join(f"{quoted([it])} = %s" for it in layout.key)
        statement = (
            f"SELECT {quoted(layout.columns)} FROM {table_name(layout.table)} WHERE {condition}"
        )

        def find(connection: psycopg.Connection) -> dict[Key, Row]:
            found = {}
            for values, key in typed_keys(keys, target.columns, target.key).items():
                for row in connection.execute(statement, values).fetchall():
                    found[key] = dict(zip(layout.names, map(to_json, row), strict=True))
            return found

        return self._run(find, "read rows")

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        from millstream.connect.sinks.columns import to_json

        layout = self._layouts[target.topic]
        statement = f"SELECT {quoted(layout.columns)} FROM {table_name(layout.table)}"
        with (
            self._transaction("read rows") as connection,
            connection.cursor(name="millstream_rows") as cursor,
        ):
            for values in cursor.execute(statement):
                yield keyed(dict(zip(layout.names, map(to_json, values), strict=True)), target.key)

    def purge(self) -> list[str]:
        tables = [table_name(it.table) for it in self._layouts.values()]
        return purge(self._url, tables)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rebuilt(self) -> PostgresSink:
        targets = [replace(it, table=it.table + REBUILD_SUFFIX) for it in self.targets]
        sink = PostgresSink(self._url, self.name + REBUILD_SUFFIX, targets)
        self._run(sink._drop, "drop tables")
        return sink

    def switch(self, rebuilt: Sink) -> None:
        """Rows are copied, so that indexes, views and rights of the table remain; readers see the
        old rows until the commit."""
        assert isinstance(rebuilt, PostgresSink)

        def exchange(connection: psycopg.Connection) -> None:
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"sink {self.name}",)
            )
            for topic, layout in self._layouts.items():
                columns = quoted(layout.columns)
                table = table_name(layout.table)
                other = table_name(rebuilt._layouts[topic].table)
                connection.execute(f"DELETE FROM {table}")
                connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {other}")
            connection.execute(f"DELETE FROM {POSITIONS_TABLE} WHERE sink = %s", (self.name,))
            for place, position in rebuilt._stored(connection).items():
                row = (self.name, *place, *position, self._identities[place.topic])
                connection.execute(_INSERT, row)
            rebuilt._drop(connection)

        self._run(exchange, "switch tables")

    def _write(
        self, connection: psycopg.Connection, target: Target, part: Part, number: int
    ) -> None:
        layout = self._layouts[target.topic]
        if not is_same_table(self._identities[target.topic], _identity(connection, layout)):
            raise PositionMoved(f"table {target.table} was created again")
        if part.changes.clear:
            connection.execute(f"DELETE FROM {table_name(layout.table)}")
        if part.rows is None or not part.rows.num_rows:
            return
        rows = make_ready(part.rows, layout)
        stage = stage_rows(connection, f"millstream_rows_{number}", rows, layout)
        for statement in Merge(layout, self._found[target.topic]).statements([stage]):
            connection.execute(statement)

    def _stored(self, connection: psycopg.Connection) -> dict[Place, Position]:
        found: list[Any] = connection.execute(
            "SELECT topic, partition, target, topic_id, next_offset, leader_epoch, "
            f"record_timestamp FROM {POSITIONS_TABLE} WHERE sink = %s",
            (self.name,),
        ).fetchall()
        return {
            Place(topic, partition): Position(*position)
            for topic, partition, target, *position in found
            if topic in self._identities and is_same_table(target, self._identities[topic])
        }

    def _forget_dropped(self, connection: psycopg.Connection, topic: str, layout: Layout) -> None:
        """Remove the positions of a table that was dropped, if the new one is empty: else it is
        not known which rows it has."""
        of_topic = f"FROM {POSITIONS_TABLE} WHERE sink = %s AND topic = %s"
        names = (self.name, topic)
        found = connection.execute(f"SELECT target {of_topic}", names).fetchall()
        if all(is_same_table(target, self._identities[topic]) for (target,) in found):
            return
        if connection.execute(f"SELECT 1 FROM {table_name(layout.table)} LIMIT 1").fetchall():
            self._replaced.append(layout.table.name)
        else:
            connection.execute(f"DELETE {of_topic}", names)

    def _drop(self, connection: psycopg.Connection) -> None:
        for layout in self._layouts.values():
            connection.execute(f"DROP TABLE IF EXISTS {table_name(layout.table)}")
        connection.execute(f"DELETE FROM {POSITIONS_TABLE} WHERE sink = %s", (self.name,))

    def _run(self, action: Callable[[psycopg.Connection], Result], doing: str) -> Result:
        with self._transaction(doing) as connection:
            return action(connection)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[psycopg.Connection]:
        import psycopg

        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._url)
            with self._connection.transaction():
                yield self._connection
        except psycopg.errors.UndefinedTable as error:
            self.close()
            raise SinkUnavailable(str(explained(error, doing))) from error  # dropped: create it
        except psycopg.Error as error:
            problem = explained(error, doing)
            if passes(error):
                self.close()
                raise SinkUnavailable(str(problem)) from error
            raise problem from error


def _identity(connection: psycopg.Connection, layout: Layout) -> str:
    found = postgres_identity(connection, table_name(layout.table), POSITIONS_TABLE)
    if found is None:
        raise SinkUnavailable(f"table {layout.table.name} was dropped")  # open() creates it
    return found
