"""PostgreSQL: rows are copied by the tasks, in parallel; one transaction merges them.

The transaction locks the query's progress first, so that of two drivers one waits and then sees
what the other did. A commit whose answer was lost is found out the same way when it is tried again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.connect.tables.identities import identify, postgres_identity
from millstream.connect.tables.postgres_connection import connect, explained, patiently
from millstream.connect.tables.postgres_rows import CREATION_LOCK, fit, stage_rows
from millstream.connect.tables.postgres_tables import (
    FoundTable,
    Merge,
    check_names,
    table_name,
)
from millstream.connect.tables.rows import Rows
from millstream.connect.tables.schema import Layout
from millstream.connect.tables.spec import PROGRESS_TABLE, VERSIONS_TABLE, TableSpec
from millstream.errors import StoreError
from millstream.pipelines.stores.fencing import check_role, is_due
from millstream.pipelines.stores.spec import FORGOTTEN, BatchMark, Progress
from millstream.pipelines.stores.staging import (
    StagedTable,
    StagePlan,
    epoch_of,
    stage_frame,
    stage_prefix,
)
from millstream.pipelines.stores.store import Store
from millstream.views.generations import (
    Generations,
    drop_retired,
    find_generations,
    retire,
    retired,
)
from millstream.views.spec import ViewEntry
from millstream.views.stamping import CREATE_TABLES, PostgresStamps

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame

Result = TypeVar("Result")
Source = StagedTable | Rows

_STAGING_TRIES = 3
_DROP_WAIT_MS = 200
_CREATE_PROGRESS = f"""
    CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} (
        query text PRIMARY KEY, epoch bigint NOT NULL, batch_id bigint,
        offsets text, decision text, checkpoint text, written_at timestamptz, tables text
    )"""
_SELECT_PROGRESS = (
    "SELECT query, epoch, batch_id, offsets, decision, checkpoint, tables "
    f"FROM {PROGRESS_TABLE} WHERE query = %s"
)


class StageLost(Exception):
    """A staging table has not the rows that were put there: the server crashed in between."""


class PostgresStore(Store):
    """Tables in one database."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._connection: psycopg.Connection | None = None
        self._was_connected = False
        self._found: dict[TableSpec, FoundTable] = {}
        self._stamps: dict[str, PostgresStamps] = {}  # of queries that have views

    def progress(self, query: str) -> Progress | None:
        return self._run(lambda connection: _stored(connection, query), "read progress")

    def _find_writers(self, table: TableSpec) -> tuple[str | None, list[tuple[str, str]]]:
        statement = f"SELECT query, tables FROM {PROGRESS_TABLE} WHERE tables IS NOT NULL"

        def find(connection: psycopg.Connection) -> tuple[str | None, list[tuple[str, str]]]:
            found: list[Any] = connection.execute(statement).fetchall()
            return postgres_identity(connection, table_name(table)), found

        return self._run(find, "read progress")

    def view_writer(self, table: TableSpec) -> str | None:
        return self._run(lambda it: PostgresStamps.view_writer(it, table), "look for views")

    def forget(self, query: str) -> None:
        statement = (
            f"INSERT INTO {PROGRESS_TABLE} (query, epoch, batch_id) VALUES (%s, 0, {FORGOTTEN}) "
            f"ON CONFLICT (query) DO UPDATE SET batch_id = {FORGOTTEN}, offsets = NULL, "
            "decision = NULL, checkpoint = NULL, tables = NULL"
        )

        def forget(connection: psycopg.Connection) -> None:
            connection.execute(statement, (query,))
            if query in self._stamps:
                self._stamps[query].forget(connection)

        self._run(forget, "forget progress")

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _fit(self, layout: Layout) -> Layout:
        check_names(layout)

        def prepare(connection: psycopg.Connection) -> FoundTable:
            found = fit(connection, layout)
            identify(connection, layout.table)
            return found

        found = self._run(prepare, f"prepare table {layout.table.name!r}")
        self._found[layout.table] = found
        return replace(layout, stays_in_order=found.decides_equality(layout))

    def _list_views(
        self, query: str, views: Sequence[tuple[str, Layout, int]], writer: str
    ) -> None:
        stamps = PostgresStamps(query, views, writer)

        def list_them(connection: psycopg.Connection) -> None:
            connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
            stamps.list_views(connection)

        self._run(list_them, "list views")
        self._stamps[writer] = stamps

    def generations(self, query: str) -> Generations:
        def find(connection: psycopg.Connection) -> Generations:
            connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
            for statement in CREATE_TABLES:
                connection.execute(statement)
            return find_generations(connection, "%s", query)

        return self._run(find, "look for views")

    def retire(self, query: str, writers: Sequence[str] = ()) -> None:
        import psycopg

        def mark(connection: psycopg.Connection) -> dict[str, list[ViewEntry]]:
            connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
            retire(connection, "%s", writers)
            return retired(connection, query)

        for writer, entries in self._run(mark, "retire views").items():
            with suppress(psycopg.errors.LockNotAvailable), self._lock:
                connection = self._opened()
                with connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = {_DROP_WAIT_MS}")
                    drop_retired(connection, "%s", writer, entries, has_functions=True)

    def _raise_epoch(self, query: str) -> int:
        def raise_it(connection: psycopg.Connection) -> int:
            cursor = connection.execute(
                f"INSERT INTO {PROGRESS_TABLE} AS p (query, epoch) VALUES (%s, 1) "
                "ON CONFLICT (query) DO UPDATE SET epoch = p.epoch + 1 RETURNING epoch",
                (query,),
            )
            return int(cursor.fetchall()[0][0])

        epoch = self._run(raise_it, "claim the query")
        self._drop_stages(query, epoch)
        return epoch

    def _is_due(self, mark: BatchMark) -> bool:
        stored = self.progress(mark.query) or Progress(mark.query, 0)
        return is_due(stored, self._epochs[mark.query], mark)

    def _write_frames(
        self, outputs: Sequence[tuple[DataFrame, TableSpec]], mark: BatchMark
    ) -> bool:
        epoch = self._epochs[mark.query]
        for _ in range(_STAGING_TRIES):
            prefix = f"{stage_prefix(mark.query)}{epoch}_{uuid.uuid4().hex[:6]}"
            merges: list[tuple[Sequence[Source], Layout]] = []
            for frame, table in outputs:
                plan = StagePlan(self._url, self._layouts[table], prefix)
                merges.append((stage_frame(frame, plan), plan.layout))
            try:
                return self._merge(merges, mark)
            except StageLost:
                continue
            finally:
                if any(isinstance(it, StagedTable) for sources, _ in merges for it in sources):
                    self._drop_stages(mark.query, epoch)
        raise StoreError(
            f"PostgreSQL lost the staged rows of batch {mark.batch_id} of query {mark.query!r} "
            f"{_STAGING_TRIES} times; nothing of it was kept: look why the server crashes"
        )

    def _write_ready(self, outputs: Sequence[tuple[Rows, Layout]], mark: BatchMark) -> bool:
        return self._merge([([rows], layout) for rows, layout in outputs], mark)

    def _merge(self, outputs: Sequence[tuple[Sequence[Source], Layout]], mark: BatchMark) -> bool:
        def commit(connection: psycopg.Connection) -> bool:
            if mark.role is not None:  # before the progress, as in a switch
                check_role(mark.role, _switch_number(connection, mark.role.pipeline))
            stored = _stored(connection, mark.query, " FOR UPDATE") or Progress(mark.query, 0)
            if mark.query in self._stamps:
                self._stamps[mark.query].check(connection)
            tables = _identities(connection, [layout.table for _, layout in outputs])
            if not is_due(stored, self._epochs[mark.query], replace(mark, tables=tables)):
                return False
            if mark.query in self._stamps:
                self._stamps[mark.query].begin(connection, mark.offsets, mark.topic_ids)
            for number, (sources, layout) in enumerate(outputs):
                stages = [
                    _stage_here(connection, f"millstream_rows_{number}_{part}", source, layout)
                    for part, source in enumerate(sources)
                ]
                for statement in Merge(layout, self._found[layout.table]).statements(stages):
                    connection.execute(statement)
            connection.execute(
                f"UPDATE {PROGRESS_TABLE} SET batch_id = %s, offsets = %s, decision = %s, "
                "checkpoint = %s, written_at = now(), tables = %s WHERE query = %s",
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

        tables = ", ".join(repr(layout.table.name) for _, layout in outputs)
        return self._run(commit, f"write batch {mark.batch_id} into {tables}")

    def _drop_stages(self, query: str, epoch: int) -> None:
        """Staging tables of this run and of those before it, unless a task still fills them."""
        import psycopg

        pattern = stage_prefix(query).replace("_", r"\_") + "%"
        with suppress(StoreError, psycopg.Error), self._lock:
            connection = self._opened()
            names = connection.execute(
                "SELECT relname FROM pg_class WHERE relname LIKE %s AND relkind = 'r' "
                "AND pg_table_is_visible(oid)",
                (pattern,),
            ).fetchall()
            for (name,) in names:
                if epoch_of(name, query) <= epoch:
                    with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
                        connection.execute(f"SET LOCAL lock_timeout = {_DROP_WAIT_MS}")
                        connection.execute(f"DROP TABLE IF EXISTS {name}")

    def _run(self, action: Callable[[psycopg.Connection], Result], doing: str) -> Result:
        """In a transaction; again where the server went away, unless it was never there."""

        def attempt() -> Result:
            connection = self._opened()
            with connection.transaction():
                return action(connection)

        with self._lock:
            if not self._was_connected:
                self._connect_first()
            return patiently(attempt, doing)

    def _connect_first(self) -> None:
        import psycopg

        try:
            connection = self._opened()
            with connection.transaction():
                connection.execute(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})")
                connection.execute(_CREATE_PROGRESS)
                _add_tables_column(connection)
        except psycopg.Error as error:
            raise explained(error, "be used as a store") from error
        self._was_connected = True

    def _opened(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url)
        return self._connection


def _stored(connection: psycopg.Connection, query: str, lock: str = "") -> Progress | None:
    found = connection.execute((_SELECT_PROGRESS + lock), (query,)).fetchone()
    return None if found is None else Progress(*found)


def _identities(connection: psycopg.Connection, tables: Sequence[TableSpec]) -> dict[str, str]:
    """By the names that the tables have in the pipeline."""
    return {it.name: postgres_identity(connection, table_name(it)) or "" for it in tables}


def _switch_number(connection: psycopg.Connection, pipeline: str) -> int | None:
    """Locked until the end of the transaction."""
    found = connection.execute(
        f"SELECT number FROM {VERSIONS_TABLE} WHERE pipeline = %s FOR SHARE", (pipeline,)
    ).fetchone()
    return None if found is None else int(found[0])


def _add_tables_column(connection: psycopg.Connection) -> None:
    """To a progress table that was created before it had the column.

    The column is looked up first, because ALTER TABLE waits for every transaction that uses the
    table, even if there is nothing to add.
    """
    found = connection.execute(
        f"SELECT 1 FROM pg_attribute WHERE attrelid = '{PROGRESS_TABLE}'::regclass "
        "AND attname = 'tables'"
    ).fetchone()
    if found is None:
        connection.execute(f"ALTER TABLE {PROGRESS_TABLE} ADD COLUMN IF NOT EXISTS tables text")


def _stage_here(connection: psycopg.Connection, name: str, source: Source, layout: Layout) -> str:
    """The name of a table with these rows: the task's, or one that lives in this transaction."""
    if isinstance(source, StagedTable):
        _check_stage(connection, source)
        return source.name
    return stage_rows(connection, name, source, layout)


def _check_stage(connection: psycopg.Connection, stage: StagedTable) -> None:
    import psycopg

    try:
        found = connection.execute(f"SELECT count(*) FROM {stage.name}").fetchone()
    except psycopg.errors.UndefinedTable as error:
        raise StageLost(stage.name) from error
    if found != (stage.row_count,):
        raise StageLost(stage.name)
