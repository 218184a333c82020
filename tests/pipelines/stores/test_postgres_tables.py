"""Tables of PostgreSQL that fit the rows, and those that do not."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from millstream.errors import SchemaMismatch
from millstream.pipelines.stores import TableSpec
from millstream.pipelines.stores.postgres_tables import (
    FoundTable,
    Merge,
    check_names,
    column_type,
    fits,
    table_name,
)
from millstream.pipelines.stores.schema import Column, layout_of
from tests.pipelines.stores.conftest import Database

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(9, 2)})
TABLE = TableSpec("items", ("id",))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("id bigint PRIMARY KEY, price numeric", "no column 'name' (string); add it: ALTER TABLE"),
        ("id bigint PRIMARY KEY, name int, price numeric", "'name' is integer there and string"),
        ("id int PRIMARY KEY, name text, price numeric", "'id' is integer there and long in the"),
        ("id bigint PRIMARY KEY, name text, price numeric(9,1)", "and decimal(9,2) in the rows"),
        ("id bigint, name text, price numeric", "no unique key (id)"),
        ("id bigint, name text, price numeric, UNIQUE (id, name)", "add it: CREATE UNIQUE INDEX"),
        ("id bigint UNIQUE DEFERRABLE, name text, price numeric", "no unique key"),
        ("id bigint PRIMARY KEY, name text, price numeric, x int NOT NULL", "'x' (integer) needs"),
    ],
)
def test_mismatch_names_table_column_types_and_cure(
    postgres_database: Database, columns: str, complaint: str
) -> None:
    postgres_database.run(f"CREATE TABLE items ({columns})")
    message = "table 'items'.*" + re.escape(complaint)
    with postgres_database.open() as store, pytest.raises(SchemaMismatch, match=message):
        store.prepare(SCHEMA, TABLE)


def test_partial_unique_index_is_no_key(postgres_database: Database) -> None:
    postgres_database.run("CREATE TABLE items (id bigint, name text, price numeric)")
    postgres_database.run("CREATE UNIQUE INDEX ON items (id) WHERE id > 5")
    with postgres_database.open() as store, pytest.raises(SchemaMismatch, match="no unique key"):
        store.prepare(SCHEMA, TABLE)


def test_table_of_somebody_else_is_used_if_it_fits(postgres_database: Database) -> None:
    postgres_database.run("CREATE SCHEMA shop")
    postgres_database.run(
        "CREATE TABLE shop.items (serial int GENERATED ALWAYS AS IDENTITY, price numeric(20,4), "
        "name varchar(3), id numeric UNIQUE, at timestamptz NOT NULL DEFAULT now())"
    )
    rows = pa.table({"id": [1], "name": ["abc"], "price": ["1.50"]}).cast(SCHEMA)
    table = TableSpec("shop.items", ("id",))
    with postgres_database.open() as store:
        store.write_arrow([(rows, table)], 0, "q")
        too_long = rows.set_column(1, "name", [["abcd"]])
        with pytest.raises(Exception, match="too long"):  # and not cut
            store.write_arrow([(too_long, table)], 1, "q")
    assert postgres_database.rows(
        "SELECT id, name, price FROM shop.items WHERE at IS NOT NULL"
    ) == [(1, "abc", 1.5)]


def test_strings_go_into_columns_that_parse_them(postgres_database: Database) -> None:
    postgres_database.run("CREATE TABLE parsed (id uuid PRIMARY KEY, body jsonb, tags text)")
    rows = pa.table({"id": ["0" * 32], "body": ['{"a": 1}'], "tags": [["x"]]})
    with postgres_database.open() as store:
        store.write_arrow([(rows, TableSpec("parsed", ("id",)))], 0, "q")
    assert postgres_database.rows("SELECT body, tags FROM parsed") == [({"a": 1}, '["x"]')]


@pytest.mark.parametrize(
    ("column", "declared", "verdict"),
    [
        (Column("x", "decimal", 9, 2), "numeric", True),
        (Column("x", "decimal", 9, 2), "numeric(10,3)", True),
        (Column("x", "decimal", 9, 2), "numeric(9,3)", False),
        (Column("x", "decimal", 9, 2), "double precision", False),
        (Column("x", "int"), "bigint", True),
        (Column("x", "long"), "numeric(5,0)", False),
        (Column("x", "timestamp"), "timestamp with time zone", True),
        (Column("x", "timestamp"), "timestamp without time zone", False),
        (Column("x", "timestamp_ntz"), "timestamp with time zone", False),
        (Column("x", "json"), "jsonb", True),
        (Column("x", "string"), "character varying(20)", True),
        (Column("x", "float"), "double precision", True),
        (Column("x", "double"), "real", False),
    ],
    ids=str,
)
def test_types_fit_if_they_hold_every_value(column: Column, declared: str, verdict: bool) -> None:
    assert fits(column, declared) is verdict


def test_own_types_fit() -> None:
    for kind in ("boolean", "byte", "string", "binary", "date", "timestamp", "json"):
        assert fits(Column("x", kind), column_type(Column("x", kind)))


def test_dot_separates_schema_and_table() -> None:
    assert table_name(TableSpec('a"b.c.d', ("id",))) == '"a""b"."c.d"'


def test_names_that_the_server_would_cut_are_refused() -> None:
    schema = pa.schema({"id": pa.int64(), "ä" * 32: pa.int64()})
    with pytest.raises(SchemaMismatch, match="63 bytes"):
        check_names(layout_of(schema, TABLE))


def test_replace_deletes_for_all_stages_before_it_inserts() -> None:
    layout = layout_of(SCHEMA, TableSpec("items", ("id",), "replace"))
    merge = Merge(layout, FoundTable({"id": "bigint", "name": "text", "price": "numeric(9,2)"}))
    first_words = [statement.split()[0] for statement in merge.statements(["a", "b"])]
    assert first_words == ["DELETE", "DELETE", "INSERT", "INSERT"]
