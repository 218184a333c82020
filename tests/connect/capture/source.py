"""A database whose changes tests read: a slot, a publication, and messages as they come.

Plain and complete enough for the encoder's tests; the capture itself is not involved.
"""

from __future__ import annotations

import select
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import pq

from millstream.connect.capture.encoding import (
    ChangeBuffer,
    ChangeFeed,
    StreamContext,
    TableEncoder,
    commit,
    table_encoder,
    take_columns,
)
from millstream.connect.capture.envelope import EnvelopeSettings
from millstream.connect.capture.tables import SESSION_OPTIONS, Column, Table
from millstream.connect.capture.types import TypeCatalogue
from millstream.records.columns import encode_batches
from millstream.records.record import decode_batch
from tests.peers.patience import PATIENCE_SECONDS

NOW_US = 1_700_000_000_123_456
SETTINGS = EnvelopeSettings("shop", "test")
_EPOCH_US = 946_684_800_000_000  # PostgreSQL's, since 1970
_PRIMARY_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
   AND a.attnum = ANY (i.indkey) WHERE i.indrelid = %s AND i.indisprimary
 ORDER BY array_position(i.indkey::int2[], a.attnum)
"""


@dataclass(frozen=True)
class Change:
    """A record as it was encoded."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@dataclass
class Source:
    """A database with a publication of all tables and a slot; messages since the last read."""

    url: str
    connection: psycopg.Connection[Any]
    stream: pq.PGconn
    settings: EnvelopeSettings = SETTINGS
    context: StreamContext = field(default_factory=StreamContext)
    buffer: ChangeBuffer = field(default_factory=ChangeBuffer)
    feed: ChangeFeed = field(default_factory=ChangeFeed)
    tables: dict[str, Table] = field(default_factory=dict)
    encoders: dict[int, TableEncoder] = field(default_factory=dict)

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> None:
        self.connection.execute(statement, parameters)

    def messages(self) -> list[bytes]:
        """The messages of everything that has been committed."""
        row = self.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            size, content = self.stream.get_copy_data(1)
            if size == 0:
                self._confirm(wants_reply=True)
                select.select([self.stream.socket], [], [], 0.05)
                self.stream.consume_input()
                continue
            assert size > 0, self.stream.error_message
            message = bytes(content)
            if message[:1] == b"w":
                found.append(message)
            else:
                (end,) = struct.unpack_from(">Q", message, 1)
                if end >= int(row[0]):
                    return found
        raise AssertionError("the stream does not reach the end of the log")

    def _confirm(self, wants_reply: bool) -> None:
        self.stream.put_copy_data(struct.pack(">cQQQQB", b"r", 0, 0, 0, 0, wants_reply))
        self.stream.flush()

    def table(self, relation: bytes) -> Table:
        """The table that a Relation message describes, with its primary key."""
        table = parse_relation(relation)
        keys = [row[0] for row in self.connection.execute(_PRIMARY_KEY, [table.oid])]
        if table.replica_identity == "i" or (
            table.replica_identity == "d" and {*keys} != {*table.identity}
        ):
            keys = list(table.identity)  # the catalogue may be newer
        return replace(table, key=tuple(keys))

    def encoder(self, table: Table) -> TableEncoder:
        catalogue = TypeCatalogue.load(self.connection)
        return table_encoder(table, self.settings, catalogue, self.context, self.buffer)

    def encode(self, messages: list[bytes]) -> list[Change]:
        """The records of a stream."""
        at = 0
        while (at := self.feed.feed(messages, at)) < len(messages):
            self.control(messages[at])
            at += 1
        return taken(self.buffer)

    def control(self, message: bytes) -> None:
        """Follow a message that is no change of a row."""
        payload = message[25:]
        match payload[:1]:
            case b"B":
                lsn, time_us, xid = struct.unpack_from(">QqI", payload, 1)
                self.context.begin(
                    xid=xid, commit_lsn=lsn, commit_time_us=time_us + _EPOCH_US, now_us=NOW_US
                )
            case b"C":
                commit(self.context, struct.unpack_from(">Q", payload, 10)[0])
            case b"R":
                table = self.table(payload)
                self.tables[table.name] = table
                self.encoders[table.oid] = self.encoder(table)
                self.feed.register(self.encoders[table.oid])
            case b"T":
                (lsn,) = struct.unpack_from(">Q", message, 1)
                (count,) = struct.unpack_from(">I", payload, 1)
                for oid in struct.unpack_from(f">{count}I", payload, 6):
                    self.encoders[oid].truncate(lsn)

    def changes(self) -> list[Change]:
        return self.encode(self.messages())

    def copy(self, table: Table, flag: str = "true") -> list[Change]:
        """The records of a snapshot of a table."""
        columns = ", ".join(f'"{column.name}"' for column in table.columns)
        statement = f'COPY "{table.schema}"."{table.name}" ({columns}) TO STDOUT'
        with self.connection.cursor().copy(statement) as lines:
            rows = [bytes(it) for it in lines]
        count = self.encoder(table).copy(
            rows, flag=flag, lsn=7, xid=8, snapshot_time_us=NOW_US, now_us=NOW_US
        )
        assert count == len(rows)
        return taken(self.buffer)


def taken(buffer: ChangeBuffer) -> list[Change]:
    """The records of a buffer, as they would be in the log."""
    columns = take_columns(buffer)
    if columns.row_count == 0:
        return []
    (rows,) = columns.rows_by_partition(1)
    batches = encode_batches(columns.row_encoder(), rows, batch_bytes_max=1 << 30)
    return [
        Change(
            record.key,
            record.value,
            record.headers,
            record.timestamp,
        )
        for batch, _ in batches
        for record in decode_batch(batch)
    ]


def parse_relation(payload: bytes) -> Table:
    """A Relation message without the primary key, which it does not have."""
    (oid,) = struct.unpack_from(">I", payload, 1)
    at = 5

    def text() -> str:
        nonlocal at
        end = payload.index(0, at)
        found = payload[at:end].decode()
        at = end + 1
        return found

    schema, name = text(), text()
    replica_identity, count = struct.unpack_from(">cH", payload, at)
    at += 3
    columns, identity = [], []
    for _ in range(count):
        is_identity = payload[at]
        at += 1
        column_name = text()
        columns.append(Column(column_name, *struct.unpack_from(">Ii", payload, at)))
        at += 8
        if is_identity:
            identity.append(column_name)
    return Table(oid, schema, name, tuple(columns), (), replica_identity.decode(), tuple(identity))


@contextmanager
def open_source(url: str) -> Iterator[Source]:
    """Publish all tables of a database, and read its changes from now on."""
    with psycopg.connect(url, autocommit=True, options=SESSION_OPTIONS) as connection:
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        # The stream is not read, and so not alive, while a test waits for something else.
        options = f"{SESSION_OPTIONS} -c wal_sender_timeout=0"
        target = psycopg.conninfo.make_conninfo(url, replication="database", options=options)
        stream = pq.PGconn.connect(target.encode())
        try:
            assert stream.status == pq.ConnStatus.OK, stream.error_message
            slot = f"test_{uuid.uuid4().hex[:8]}"
            created = stream.exec_(
                f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput"
                " NOEXPORT_SNAPSHOT".encode()
            )
            assert created.status == pq.ExecStatus.TUPLES_OK, created.error_message
            started = stream.exec_(
                f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1',"
                " publication_names 'everything', messages 'true')".encode()
            )
            assert started.status == pq.ExecStatus.COPY_BOTH, started.error_message
            stream.nonblocking = 1
            yield Source(url, connection, stream)
        finally:
            stream.finish()
