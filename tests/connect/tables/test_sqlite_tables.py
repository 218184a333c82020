"""Tables of SQLite: affinities, identities, and files that are opened for writing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import layout_of
from millstream.connect.tables.spec import TableSpec
from millstream.connect.tables.sqlite_tables import (
    affinity,
    apply,
    fit,
    forget_identity,
    identify,
    identity,
    open_database,
)

ROWS = pa.table({"id": [2, 1, 2], "name": ["b", "a", "c"]})
LAYOUT = layout_of(ROWS.schema, TableSpec("items", ("id",)))


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("BIGINT", "INTEGER"),
        ("character varying", "TEXT"),
        ("DOUBLE PRECISION", "REAL"),
        ("", "BLOB"),
        ("DECIMAL(1,2)", "NUMERIC"),
    ],
)
def test_affinity_follows_sqlites_rules(declared: str, expected: str) -> None:
    assert affinity(declared) == expected


def test_rows_are_applied_within_the_callers_transaction(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "new" / "items.db")
    connection.execute("BEGIN")
    fit(connection, LAYOUT)
    apply(connection, make_ready(ROWS, LAYOUT), LAYOUT)
    assert connection.execute("SELECT * FROM items").fetchall() == [(1, "a"), (2, "c")]
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT * FROM sqlite_schema WHERE name = 'items'").fetchall() == []
    connection.close()


def test_table_created_again_has_another_identity(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "items.db")
    assert identity(connection, "items") is None
    fit(connection, LAYOUT)
    first = identity(connection, "items")
    fit(connection, LAYOUT)
    assert identity(connection, "ITEMS") == first is not None
    connection.execute("DROP TABLE items")
    fit(connection, LAYOUT)
    second = identity(connection, "items")
    assert second not in (None, first)
    connection.execute("DROP TABLE items")
    connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")  # by hand
    assert identity(connection, "items") is None
    fit(connection, LAYOUT)
    assert identity(connection, "items") not in (None, first, second)
    connection.close()


def test_renamed_table_keeps_its_identity(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "items.db")
    fit(connection, LAYOUT)
    first = identity(connection, "items")
    connection.execute("ALTER TABLE items RENAME TO kept")
    assert (identity(connection, "items"), identity(connection, "kept")) == (None, first)
    fit(connection, LAYOUT)
    assert identity(connection, "items") not in (None, first)
    connection.close()


def test_table_keeps_the_identity_that_an_earlier_build_gave_it(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "items.db")
    connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute("INSERT INTO millstream_tables VALUES ('items', 'known')")
    assert identity(connection, "items") == "known"
    fit(connection, LAYOUT)
    assert identity(connection, "items") == "known"
    assert connection.execute("SELECT * FROM millstream_tables").fetchall() == []
    connection.close()


def test_view_has_an_identity(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "items.db")
    connection.execute("CREATE VIEW items AS SELECT 1 AS id")
    first = identify(connection, "items")
    assert identify(connection, "items") == identity(connection, "items") == first
    forget_identity(connection, "items")
    assert identity(connection, "items") is None
    connection.close()
