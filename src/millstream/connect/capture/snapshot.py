"""Copying tables: in the slot's exported snapshot, or in chunks beside the stream.

`ExportedCopy` reads whole tables, several at a time, in the snapshot that the slot was created
with. The stream starts after it, and contains exactly the later changes.

That snapshot ends with its session. What is left after a crash, tables that are added later, and
new snapshots of single tables are read in chunks by key (`ChunkReader`), each in a snapshot of its
own, while the stream goes on. A chunk is written when the stream has passed the end of the log as
it was after the read: by then all transactions that the chunk sees are written. Rows that were
changed by transactions that it does not see are dropped (`visibility.py`).
"""

from __future__ import annotations

import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from millstream.connect.capture.pgoutput import parse_lsn
from millstream.connect.capture.position import TableState
from millstream.connect.capture.source import CopyPlan, connect
from millstream.connect.capture.tables import CaptureError
from millstream.connect.capture.visibility import DatabaseSnapshot

CHUNK_BYTES_MAX = 8 * 1024 * 1024
# A table without a key cannot be read in chunks beside the stream.
KEYLESS_BYTES_MAX = 256 * 1024 * 1024
CHUNKS_AHEAD = 4
POLL_SECONDS = 0.1
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True)
class Chunk:
    """Rows of a table, as COPY's text."""

    table: str
    rows: list[bytes]
    after: tuple[str, ...]  # the key of the last row: the next chunk begins behind it
    is_last: bool
    key: tuple[str, ...]  # `key_order` of the plan
    snapshot: DatabaseSnapshot | None = None  # of a chunk beside the stream
    end_lsn: int = 0  # the end of the log after the read
    begins_after: tuple[str, ...] = ()

    def added_to(self, table: TableState) -> TableState:
        """The progress of the table once this chunk is written."""
        return replace(
            table,
            snapshot="done" if self.is_last else "copying",
            after=self.after,
            key=self.key,
            rows=table.rows + len(self.rows),
        )


def keyless_problem(table: str) -> str:
    return (
        f"table {table} has no key and more than {KEYLESS_BYTES_MAX // 2**20} MB: it cannot be "
        "copied beside the stream. Add a primary key, or exclude the table, or copy all tables "
        "with `millstream capture resnapshot --new-slot`"
    )


def copy_query(plan: CopyPlan, after: Sequence[str] = (), limit: int | None = None) -> sql.Composed:
    """COPY of the published columns in the order of the key, behind `after`."""
    table = sql.Identifier(plan.table.schema, plan.table.name)
    source = table if plan.kind == "p" else sql.SQL("ONLY {}").format(table)
    columns = sql.SQL(", ").join(sql.Identifier(it.name) for it in plan.table.columns)
    key = sql.SQL(", ").join(sql.Identifier(name) for name in plan.table.key)
    parts: list[sql.Composable] = [sql.SQL("SELECT {} FROM {}").format(columns, source)]
    conditions: list[sql.Composable] = []
    if plan.row_filter is not None:
        conditions.append(sql.SQL(plan.row_filter))
    if after:
        values = sql.SQL(", ").join(sql.Literal(value) for value in after)
        conditions.append(sql.SQL("({}) > ({})").format(key, values))
    if conditions:
        parts.append(sql.SQL("WHERE ") + sql.SQL(" AND ").join(conditions))
    if plan.table.key:
        parts.append(sql.SQL("ORDER BY {}").format(key))
    if limit is not None:
        parts.append(sql.SQL("LIMIT {}").format(sql.Literal(limit)))
    return sql.SQL("COPY ({}) TO STDOUT").format(sql.SQL(" ").join(parts))


def table_rows(
    connection: psycopg.Connection[Any],
    plan: CopyPlan,
    after: Sequence[str] = (),
    limit: int | None = None,
) -> Generator[bytes]:
    """The rows of a table; see `copy_query`."""
    table, role = plan.table.full_name, connection.info.user
    try:
        yield from copy_rows(connection, copy_query(plan, after, limit))
    except psycopg.errors.InsufficientPrivilege as error:
        raise CaptureError(
            f"table {table} cannot be copied by role {role}: {error.diag.message_primary}. Run "
            f"`GRANT SELECT ON {table} TO {role}`; if the table has row level security, also "
            f"`ALTER ROLE {role} BYPASSRLS`"
        ) from None


def copy_rows(connection: psycopg.Connection[Any], query: sql.Composed) -> Generator[bytes]:
    """The lines of a COPY. psycopg's own iteration takes three times the CPU time of this one.

    If it is not read to the end, the connection is closed.
    """
    raw = connection.pgconn
    raw.send_query(query.as_bytes(connection))
    is_read = False
    try:
        _check(_result(raw), ExecStatus.COPY_OUT)
        while True:
            size, line = raw.get_copy_data(1)
            if size > 0:
                yield bytes(line)
            elif size == 0:
                _receive(raw)
            else:
                break
        _check(_result(raw), ExecStatus.COMMAND_OK)
        is_read = raw.get_result() is None
    finally:
        if not is_read:
            connection.close()


def _result(raw: PGconn) -> PGresult:
    while raw.is_busy():
        _receive(raw)
    result = raw.get_result()
    assert result is not None
    return result


def _receive(raw: PGconn) -> None:
    """Wait for more. Another thread may close the connection meanwhile."""
    if select.select([raw.socket], [], [], POLL_SECONDS)[0]:
        raw.consume_input()


def _check(result: PGresult, expected: ExecStatus) -> None:
    if result.status != expected:
        raise psycopg.errors.error_from_result(result)


def key_of(plan: CopyPlan, row: bytes) -> tuple[str, ...]:
    """The key of a row of COPY's text."""
    fields = row.rstrip(b"\n").split(b"\t")
    names = [column.name for column in plan.table.columns]
    return tuple(_unescape(fields[names.index(name)].decode()) for name in plan.table.key)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    found = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            escaped = next(characters)
            character = _ESCAPES.get(escaped, escaped)
        found.append(character)
    return "".join(found)


class ExportedCopy:
    """Threads that copy tables in one exported snapshot. `chunks` yields what they read."""

    def __init__(
        self,
        database: str,
        snapshot: str,
        plans: dict[str, CopyPlan],
        *,
        workers: int,
        chunk_rows: int,
    ) -> None:
        """Returns when all workers are in the snapshot."""
        self._plans = plans
        self._chunk_rows = chunk_rows
        self._keyless = deque(name for name, plan in plans.items() if not plan.table.key)
        self._keyed = deque(name for name, plan in plans.items() if plan.table.key)
        self._keyless_left = len(self._keyless)
        self._may_copy_keyed = threading.Event()
        self._stopping = threading.Event()
        self._chunks: queue.Queue[Chunk | Exception | None] = queue.Queue(CHUNKS_AHEAD)
        self._connections = [_import(database, snapshot) for _ in range(min(workers, len(plans)))]
        if not self._keyless:
            self._may_copy_keyed.set()
        self._threads = [
            threading.Thread(target=self._work, args=(it,), name="capture copy", daemon=True)
            for it in self._connections
        ]
        for thread in self._threads:
            thread.start()

    def chunks(self) -> Iterator[Chunk]:
        """Chunks in the order of their table; ask for the next one when one is committed.

        Tables without a key come first: a crash before they are complete starts over, and then
        nothing else is copied twice.
        """
        running = len(self._threads)
        while running:
            found = self._chunks.get()
            if found is None:
                running -= 1
            elif isinstance(found, Exception):
                raise found
            else:
                yield found
                if found.is_last and not self._plans[found.table].table.key:
                    self._keyless_left -= 1
                    if not self._keyless_left:
                        self._may_copy_keyed.set()

    def stop(self) -> None:
        self._stopping.set()
        self._may_copy_keyed.set()
        for connection in self._connections:
            connection.close()

    def _work(self, connection: psycopg.Connection[Any]) -> None:
        try:
            for tables in (self._keyless, self._keyed):
                while tables and not self._stopping.is_set():
                    try:
                        table = tables.popleft()
                    except IndexError:
                        break  # another worker has it
                    for chunk in self._copy(connection, table):
                        self._put(chunk)
                self._may_copy_keyed.wait()
            connection.close()
            self._put(None)
        except Exception as error:  # noqa: BLE001 - it is raised in the consumer's thread
            self._put(error)

    def _copy(self, connection: psycopg.Connection[Any], table: str) -> Iterator[Chunk]:
        plan = self._plans[table]
        rows: list[bytes] = []
        size = 0
        for row in table_rows(connection, plan):
            rows.append(row)
            size += len(row)
            if len(rows) >= self._chunk_rows or size >= CHUNK_BYTES_MAX:
                yield Chunk(table, rows, key_of(plan, rows[-1]), is_last=False, key=plan.key_order)
                rows, size = [], 0
        after = key_of(plan, rows[-1]) if rows else ()
        yield Chunk(table, rows, after, is_last=True, key=plan.key_order)

    def _put(self, item: Chunk | Exception | None) -> None:
        while not self._stopping.is_set():
            try:
                self._chunks.put(item, timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue


def _connect(database: str) -> psycopg.Connection[Any]:
    """For reading rows. Policies of row level security, which do not apply to the stream, are an
    error: they would silently leave out rows."""
    connection = connect(database)
    connection.execute("SET row_security = off")
    return connection


def _import(database: str, snapshot: str) -> psycopg.Connection[Any]:
    connection = _connect(database)
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    return connection


class ChunkReader:
    """A thread that reads one chunk at a time, on request."""

    def __init__(self, database: str, mark: Callable[[psycopg.Connection[Any]], None]) -> None:
        """`mark` writes something to the database's log, so that the stream soon passes it."""
        self._mark = mark
        self._connection = _connect(database)
        self._connection.execute("SET synchronous_commit = local")
        self._requests: queue.Queue[tuple[str, CopyPlan, tuple[str, ...], int] | None]
        self._requests = queue.Queue(1)
        self._result: Chunk | Exception | None = None
        self._is_busy = False
        self._thread = threading.Thread(target=self._work, name="capture chunks", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a chunk was requested and not taken yet."""
        return self._is_busy

    def request(self, table: str, plan: CopyPlan, after: tuple[str, ...], limit: int) -> None:
        self._is_busy = True
        self._requests.put((table, plan, after, limit))

    def take(self) -> Chunk | None:
        """The chunk, once it is read."""
        result, self._result = self._result, None
        if result is None:
            return None
        self._is_busy = False
        if isinstance(result, Exception):
            raise result
        return result

    def stop(self) -> None:
        self._requests.put(None)
        self._connection.close()

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            if request is None:
                return
            try:
                self._result = self._read(*request)
            except Exception as error:  # noqa: BLE001 - it is raised in the consumer's thread
                self._result = error

    def _read(self, table: str, plan: CopyPlan, after: tuple[str, ...], limit: int) -> Chunk:
        connection = self._connection
        rows: list[bytes] = []
        size = 0
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert found is not None
            for row in table_rows(connection, plan, after, limit if plan.table.key else None):
                rows.append(row)
                size += len(row)
                if not plan.table.key and size > KEYLESS_BYTES_MAX:
                    raise CaptureError(keyless_problem(table))
        # A visible transaction may be in the log without being flushed yet.
        end = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert end is not None
        self._mark(connection)
        return Chunk(
            table,
            rows,
            key_of(plan, rows[-1]) if rows else after,
            is_last=not plan.table.key or len(rows) < limit,
            key=plan.key_order,
            snapshot=DatabaseSnapshot.parse(found[0]),
            end_lsn=parse_lsn(end[0]),
            begins_after=after,
        )
