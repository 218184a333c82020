"""Whether a table is still the one that a query wrote to: renamed, restored or created again."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from millstream.connect.tables.identities import is_same_table, postgres_identity
from millstream.errors import StoreError
from millstream.pipelines.stores import TableSpec, open_store
from tests.peers.postgres import PostgresServer, program
from tests.pipelines.stores.conftest import Database, new_database

USERS = TableSpec("users", ("id",))


@pytest.mark.parametrize(
    ("known", "found", "is_same"),
    [
        (None, "a", False),
        ("a", None, False),
        ("a", "a", True),
        ("a", "b", False),
        # In the same database, the number counts.
        ("16390/16385/a", "16390/16385/a", True),
        ("16390/16385/a", "16390/16385/", True),  # the comment was replaced
        ("16390/16385/a", "16400/16385/a", False),  # the table was restored by itself
        # In a restored one the id does.
        ("16390/16385/a", "16400/16399/a", True),
        ("16390/16385/a", "16390/16399/b", False),
        ("16390/16385/", "16390/16399/", False),
        # Earlier builds have stored a number.
        ("16390", "16390/16385/a", True),
        ("16390", "16400/16385/a", False),
    ],
)
def test_identity_is_compared_by_number_or_id(
    known: str | None, found: str | None, is_same: bool
) -> None:
    assert is_same_table(known, found) is is_same


def write(database: Database, batch_id: int) -> None:
    """A batch of one row, from one offset."""
    ends, begins = (json.dumps({"orders": {"0": it}}) for it in (batch_id + 1, batch_id))
    rows = pa.table({"id": pa.array([batch_id], pa.int64())})
    with database.open() as store:
        store.write_arrow([(rows, USERS)], batch_id, "q", ends, begins=begins)


def dumped(database: Database, *options: str) -> str:
    command = [program("pg_dump"), "--inserts", "--no-owner", *options, database.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Commands of psql, which newer versions write, are not SQL.
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("\\"))


def restored(database: Database, dump: str) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(dump)  # type: ignore[arg-type]


@pytest.fixture
def other_database(postgres: PostgresServer) -> Database:
    """Tables have other numbers there."""
    made = new_database(postgres)
    made.run("CREATE TABLE filler (x int)")
    return made


def test_restored_dump_continues(postgres_database: Database, other_database: Database) -> None:
    write(postgres_database, 0)
    restored(other_database, dumped(postgres_database))
    for batch_id in (1, 2):
        write(other_database, batch_id)
    assert other_database.rows("SELECT id FROM users ORDER BY id") == [(0,), (1,), (2,)]


def test_restored_dump_that_lacks_batches_is_refused(
    postgres_database: Database, other_database: Database
) -> None:
    write(postgres_database, 0)
    dump = dumped(postgres_database)
    write(postgres_database, 1)
    restored(other_database, dump)
    with pytest.raises(StoreError, match=r"behind their checkpoint.*what lies between"):
        write(other_database, 2)


def test_restored_dump_without_the_table_is_refused(
    postgres_database: Database, other_database: Database
) -> None:
    write(postgres_database, 0)
    restored(other_database, dumped(postgres_database, "--exclude-table=users"))
    with pytest.raises(StoreError, match="'users' was dropped and created again"):
        write(other_database, 1)


def test_table_that_is_restored_by_itself_is_refused(postgres_database: Database) -> None:
    """It may be older than the progress."""
    write(postgres_database, 0)
    dump = dumped(postgres_database, "--table=users")
    write(postgres_database, 1)
    postgres_database.run("DROP TABLE users")
    restored(postgres_database, dump)
    with pytest.raises(StoreError, match=r"restored by itself.*together with millstream_progress"):
        write(postgres_database, 2)


def test_table_that_is_restored_with_its_progress_continues(postgres_database: Database) -> None:
    write(postgres_database, 0)
    dump = dumped(postgres_database)
    postgres_database.run("DROP TABLE users, millstream_progress")
    restored(postgres_database, dump)
    write(postgres_database, 1)
    assert postgres_database.rows("SELECT id FROM users ORDER BY id") == [(0,), (1,)]


def test_comment_of_the_user_is_kept_and_may_be_replaced(postgres_database: Database) -> None:
    postgres_database.run("CREATE TABLE users (id bigint PRIMARY KEY)")
    postgres_database.run("COMMENT ON TABLE users IS 'People''s ids'")
    write(postgres_database, 0)
    ((comment,),) = postgres_database.rows("SELECT obj_description('users'::regclass, 'pg_class')")
    assert comment.startswith("People's ids [millstream ")
    postgres_database.run("COMMENT ON TABLE users IS 'Others'")
    write(postgres_database, 1)
    with psycopg.connect(postgres_database.url) as connection:
        found = postgres_identity(connection, "users")
    assert found is not None
    assert found.rpartition("/")[2] != ""


def test_table_that_is_locked_gets_its_id_from_a_later_run(postgres_database: Database) -> None:
    postgres_database.run("CREATE TABLE users (id bigint PRIMARY KEY)")
    with psycopg.connect(postgres_database.url) as other:
        other.execute("LOCK TABLE users IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM does
        write(postgres_database, 0)
        without = postgres_identity(other, "users")
        other.rollback()
        write(postgres_database, 1)
        found = postgres_identity(other, "users")
    assert without is not None
    assert found is not None
    assert found.startswith(without)
    assert len(found) == len(without) + 32


def test_table_that_somebody_else_owns_is_known_by_its_number(postgres_database: Database) -> None:
    role = postgres_database.url.rpartition("/")[2].replace("test", "role")
    for statement in (
        f"CREATE ROLE {role} LOGIN",
        f"GRANT CREATE ON SCHEMA public TO {role}",
        "CREATE TABLE users (id bigint PRIMARY KEY)",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON users TO {role}",
    ):
        postgres_database.run(statement)
    as_role = Database(postgres_database.url.replace("millstream@", f"{role}@"))
    for batch_id in (0, 1):
        write(as_role, batch_id)
    postgres_database.run("DROP TABLE users")
    postgres_database.run("CREATE TABLE users (id bigint PRIMARY KEY)")
    postgres_database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON users TO {role}")
    with pytest.raises(StoreError, match="'users' was dropped and created again"):
        write(as_role, 2)


def test_copy_of_a_sqlite_file_continues_unless_it_lacks_batches(tmp_path: Path) -> None:
    original = Database(f"sqlite:///{tmp_path}/store.db")
    write(original, 0)
    copies = [Database(f"sqlite:///{tmp_path}/{name}.db") for name in ("vacuumed", "dumped")]
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("VACUUM INTO ?", (f"{tmp_path}/vacuumed.db",))
        dump = "\n".join(connection.iterdump())
    connection.close()
    with sqlite3.connect(tmp_path / "dumped.db") as connection:
        connection.executescript(dump)
    connection.close()
    for copy in copies:
        with pytest.raises(StoreError, match="behind their checkpoint"):
            write(copy, 2)
        write(copy, 1)
        assert copy.rows("SELECT id FROM users ORDER BY id") == [(0,), (1,)]


def test_identity_of_a_sqlite_table_costs_it_no_columns_or_entries(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.db")
    write(database, 0)
    database.run("ALTER TABLE users ADD COLUMN name TEXT")
    database.run("ALTER TABLE users DROP COLUMN name")
    with open_store(database.url) as store:
        assert store.writers(USERS) == ["q"]
    assert database.rows("PRAGMA integrity_check") == [("ok",)]
