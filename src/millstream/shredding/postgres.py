"""Keys in a table of PostgreSQL, for many hosts.

    millstream_subject_keys(id, subject, secret, created_ms)

Deleted rows stay in the table's pages until they are vacuumed, and in its WAL and backups as long
as those are kept: `forget` vacuums the table. Keep its backups apart from those of the data, and
shorter. Needs the extra `postgres`.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from millstream.shredding.envelope import KEY_ID_BYTES
from millstream.shredding.store import KEY_BYTES, KeyStoreError, SubjectKey, subject_hash

if TYPE_CHECKING:
    from psycopg import Connection

TABLE = "millstream_subject_keys"
_CREATE = f"""
create table if not exists {TABLE} (
    id bytea primary key,
    subject text not null,
    secret bytea not null,
    created_ms bigint not null,
    number integer not null,
    unique (subject, number)
)"""


class PostgresKeys:
    """A `KeyStore` in a database; creates its table."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: Connection | None = None
        with self._connect().transaction():
            self._connect().execute("select pg_advisory_xact_lock(hashtext(%s))", [TABLE])
            self._connect().execute(_CREATE)

    def current(self, subject: str) -> SubjectKey:
        return self._newest(subject) or self._add(subject, number=1)

    def find(self, key_id: bytes) -> SubjectKey | None:
        row = self._row("where id = %s", key_id)
        return None if row is None else SubjectKey(key_id, row[1], row[2])

    def rotate(self, subject: str) -> SubjectKey:
        row = self._row("where subject = %s order by number desc limit 1", subject_hash(subject))
        if row is None:
            raise KeyStoreError(f"the subject {subject!r} has no keys")
        return self._add(subject, number=row[3] + 1)

    def key_ids(self, subject: str) -> list[bytes]:
        query = f"select id from {TABLE} where subject = %s order by number"
        found = self._connect().execute(query, [subject_hash(subject)]).fetchall()
        return [bytes(row[0]) for row in found]

    def forget(self, subject: str) -> list[bytes]:
        connection = self._connect()
        found = connection.execute(
            f"delete from {TABLE} where subject = %s returning id", [subject_hash(subject)]
        ).fetchall()
        connection.execute(f"vacuum {TABLE}")
        return [bytes(row[0]) for row in found]

    def subject_count(self) -> int:
        row = self._connect().execute(f"select count(distinct subject) from {TABLE}").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _newest(self, subject: str) -> SubjectKey | None:
        row = self._row("where subject = %s order by number desc limit 1", subject_hash(subject))
        return None if row is None else SubjectKey(row[0], row[1], row[2])

    def _add(self, subject: str, *, number: int) -> SubjectKey:
        """The key with this number: ours, or that of a process that was faster."""
        self._connect().execute(
            f"insert into {TABLE} (id, subject, secret, created_ms, number) "
            "values (%s, %s, %s, %s, %s) on conflict (subject, number) do nothing",
            [
                secrets.token_bytes(KEY_ID_BYTES),
                subject_hash(subject),
                secrets.token_bytes(KEY_BYTES),
                time.time_ns() // 1_000_000,
                number,
            ],
        )
        found = self._newest(subject)
        return self._add(subject, number=1) if found is None else found

    def _row(self, condition: str, value: object) -> tuple[bytes, bytes, int, int] | None:
        query = f"select id, secret, created_ms, number from {TABLE} {condition}"
        row = self._connect().execute(query.encode(), [value]).fetchone()
        return None if row is None else (bytes(row[0]), bytes(row[1]), int(row[2]), int(row[3]))

    def _connect(self) -> Connection:
        import psycopg

        if self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.connect(self._conninfo, autocommit=True)
            except psycopg.OperationalError as error:
                raise KeyStoreError(f"cannot reach the store of keys: {error}") from error
        return self._connection
