"""SQLite's own side: tables that fit or not, disks that are full, files that are busy."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.connect.tables import sqlite_tables
from millstream.errors import SchemaMismatch, StoreError
from millstream.pipelines.stores import TableSpec
from millstream.pipelines.stores.sqlite import SqliteStore
from tests.peers.small_disk import small_tmpfs

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(9, 2)})
TABLE = TableSpec("items", ("id",))
DISK_BYTES = 2 * 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path) as opened:
        yield opened


def create(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "columns",
    [
        "id INTEGER PRIMARY KEY, name VARCHAR(9), price TEXT",
        "price TEXT, name TEXT, id BIGINT, UNIQUE (id)",
        "ID INT PRIMARY KEY, Name CLOB, PRICE TEXT, extra REAL, more TEXT NOT NULL DEFAULT 'x'",
    ],
)
def test_table_of_somebody_else_is_used_if_it_fits(
    store: SqliteStore, path: Path, columns: str
) -> None:
    create(path, f"CREATE TABLE items ({columns})")
    rows = pa.table({"id": [1], "name": ["a"], "price": ["1.50"]}).cast(SCHEMA)
    store.write_arrow([(rows, TABLE)], 0, "q")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT id, name, price FROM items").fetchall() == [
            (1, "a", "1.50")
        ]


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("id INTEGER PRIMARY KEY, price TEXT", "no column 'name' (string); add it: ALTER TABLE"),
        ("id INTEGER PRIMARY KEY, name BLOB, price TEXT", "'name' is BLOB there and string in"),
        ("id TEXT PRIMARY KEY, name TEXT, price TEXT", "'id' is TEXT there and long in the rows"),
        ("id INTEGER PRIMARY KEY, name TEXT, price DECIMAL(9,2)", "decimal(9,2) in the rows"),
        ("id INTEGER PRIMARY KEY, name ANY, price TEXT", "'name' is ANY there and string in"),
        ("id INTEGER, name TEXT, price TEXT", "no unique key (id)"),
        ("id INTEGER, name TEXT, price TEXT, UNIQUE (id, name)", "add it: CREATE UNIQUE INDEX"),
        ("id INT PRIMARY KEY, name TEXT, price TEXT, x INT NOT NULL", "'x' (INT) needs a value"),
    ],
)
def test_mismatch_names_table_column_types_and_cure(
    store: SqliteStore, path: Path, columns: str, complaint: str
) -> None:
    create(path, f"CREATE TABLE items ({columns})")
    with pytest.raises(SchemaMismatch, match="table 'items'.*" + re.escape(complaint)):
        store.prepare(SCHEMA, TABLE)


def test_any_column_of_a_strict_table_keeps_values_as_they_are(
    store: SqliteStore, path: Path
) -> None:
    create(path, "CREATE TABLE items (id INTEGER PRIMARY KEY, name ANY, price TEXT) STRICT")
    rows = pa.table({"id": [1], "name": ["007"], "price": ["1.50"]}).cast(SCHEMA)
    store.write_arrow([(rows, TABLE)], 0, "q")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM items").fetchall() == [("007",)]


def test_small_decimal_is_kept_with_all_its_digits(store: SqliteStore, path: Path) -> None:
    prices = pa.array([Decimal("0"), Decimal("1E-10")], pa.decimal128(38, 10))
    table = TableSpec("prices", mode="append")
    store.write_arrow([(pa.table({"price": prices}), table)], 0, "q")
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT price FROM prices").fetchall()
    assert found == [("0.0000000000",), ("0.0000000001",)]


def test_commit_is_durable_and_readers_do_not_block(store: SqliteStore, path: Path) -> None:
    store.prepare(SCHEMA, TABLE)
    connection = store._opened()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def blob_rows(number: int, size: int) -> pa.Table:
    return pa.table({"id": [number], "content": [os.urandom(size)]})


def test_full_disk_keeps_whole_batches_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", DISK_BYTES) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(DISK_BYTES // 2))
        table = TableSpec("blobs", mode="append")
        with SqliteStore(disk / "store.db") as store:
            written, complaint = write_until_refused(store, table)
            assert re.search(r"store\.db.*(full|I/O).*make room", complaint)
            assert written > 0
            assert count(disk / "store.db") == written
            filler.unlink()
            assert store.last_batch("q") == written - 1
            assert store.write_arrow([(blob_rows(written, 100_000), table)], written, "q")
            assert count(disk / "store.db") == written + 1


def test_file_that_may_not_grow_keeps_whole_batches(store: SqliteStore, path: Path) -> None:
    """The limit is in force for this process, so it is lifted before anything else is written."""
    table = TableSpec("blobs", mode="append")
    store.write_arrow([(blob_rows(0, 1000), table)], 0, "q")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = blob_rows(1, 5_000_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(StoreError, match="nothing of the batch was kept"):
            store.write_arrow([(rows, table)], 1, "q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert count(path) == 1
    assert store.write_arrow([(rows, table)], 1, "q")
    assert count(path) == 2


def write_until_refused(store: SqliteStore, table: TableSpec) -> tuple[int, str]:
    """How many batches were taken, and what was said of the next."""
    for batch_id in range(DISK_BYTES // 100_000 + 1):
        try:
            store.write_arrow([(blob_rows(batch_id, 100_000), table)], batch_id, "q")
        except StoreError as error:
            return batch_id, str(error)
    raise AssertionError("the disk never filled up")


def count(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        (found,) = connection.execute("SELECT count(*) FROM blobs").fetchone()
    connection.close()
    return int(found)


def test_busy_file_is_reported(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tables, "BUSY_SECONDS_MAX", 0.1)
    store.prepare(SCHEMA, TABLE)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"store\.db.*locked.*another process"):
        store.claim("q")
    other.close()
    assert store.claim("q") == 1


def test_file_that_is_no_database_is_reported(path: Path, store: SqliteStore) -> None:
    path.write_text("these are no tables, " * 100)
    with pytest.raises(StoreError, match=r"store\.db: file is not a database"):
        store.last_batch("q")


def test_not_a_number_becomes_null(store: SqliteStore, path: Path) -> None:
    rows = pa.table({"id": [1, 2], "x": [float("nan"), float("inf")]})
    store.write_arrow([(rows, TableSpec("floats", ("id",)))], 0, "q")
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT x FROM floats ORDER BY id").fetchall()
    assert found == [(None,), (float("inf"),)]
