"""Definitions of views that show one of several tables, and what PostgreSQL makes of them."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from millstream.pipelines.versions.catalog import Catalog, open_catalog
from millstream.pipelines.versions.postgres_views import definition, quoted
from tests.pipelines.stores.conftest import Database


def test_view_of_one_table_has_no_condition() -> None:
    assert definition("t", ["a", "b"], ["t__v1"]) == 'SELECT "a", "b" FROM "t__v1"'


def test_names_are_quoted() -> None:
    assert quoted("sales.t") == '"sales"."t"'
    text = definition("o'neil", ["a"], ["s.t1", "t2"])
    assert "name = 'o''neil'" in text
    assert 'FROM "s"."t1"' in text


@pytest.fixture
def tables(postgres_database: Database) -> Database:
    for number in (1, 2):
        postgres_database.run(f"CREATE TABLE t{number} (a varchar(9) PRIMARY KEY, b numeric(9, 2))")
        postgres_database.run(
            f"INSERT INTO t{number} SELECT g || 'v{number}', {number} FROM generate_series(1, 9) g"
        )
    return postgres_database


def put(catalog: Catalog, *tables: str) -> None:
    """A view of the first one that is prepared for all."""
    catalog.run(lambda work: work.put_view("t", tables[0]), "put")
    catalog.run(lambda work: work.prepare_view("t", tables[0], tables), "prepare")


def show(catalog: Catalog, table: str) -> bool:
    return catalog.run(lambda work: work.show("t", table), "show")


def scanned(database: Database, statement: str) -> dict[str, int]:
    """How often PostgreSQL began to scan each table."""
    ((plans,),) = database.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
    found: dict[str, int] = {}

    def visit(node: dict[str, Any]) -> None:
        if "Relation Name" in node:
            found[node["Relation Name"]] = node["Actual Loops"]
        for each in node.get("Plans", ()):
            visit(each)

    visit((json.loads(plans) if isinstance(plans, str) else plans)[0]["Plan"])
    return found


def test_prepared_view_shows_another_table_while_a_reader_holds_its_lock(tables: Database) -> None:
    with open_catalog(tables.url) as catalog, psycopg.connect(tables.url) as reader:
        put(catalog, "t1", "t2")
        assert reader.execute("SELECT DISTINCT b FROM t").fetchall() == [(1,)]
        assert show(catalog, "t2")
        assert reader.execute("SELECT DISTINCT b FROM t").fetchall() == [(2,)]
        assert show(catalog, "t1")
        assert tables.rows("SELECT count(*) FROM t WHERE b = 1") == [(9,)]


def test_repeatable_read_keeps_the_table_that_it_began_with(tables: Database) -> None:
    with open_catalog(tables.url) as catalog, psycopg.connect(tables.url) as reader:
        put(catalog, "t1", "t2")
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        show(catalog, "t2")
        assert reader.execute("SELECT DISTINCT b FROM t").fetchall() == [(1,)]
        reader.rollback()
        assert reader.execute("SELECT DISTINCT b FROM t").fetchall() == [(2,)]


def test_tables_that_are_not_shown_are_not_scanned_and_keys_are_looked_up(tables: Database) -> None:
    with open_catalog(tables.url) as catalog:
        put(catalog, "t1", "t2")
    assert (found := scanned(tables, "SELECT * FROM t"))["t1"] == 1
    assert found["t2"] == 0
    tables.run("INSERT INTO t1 SELECT 'x' || g, 0 FROM generate_series(1, 20000) g")
    tables.run("ANALYZE t1")
    plan = str(tables.rows("EXPLAIN (FORMAT JSON) SELECT * FROM t WHERE a = 'x7'"))
    assert "t1_pkey" in plan


def test_table_with_other_columns_is_not_shown_by_a_row(tables: Database) -> None:
    tables.run("CREATE TABLE t3 (a varchar(10) PRIMARY KEY, b numeric(9, 2))")
    with open_catalog(tables.url) as catalog:
        put(catalog, "t1", "t2", "t3")
        assert not show(catalog, "t3")
        assert show(catalog, "t2")
        tables.run("ALTER TABLE t1 ADD COLUMN c int")
        assert not show(catalog, "t1")
        assert tables.rows("SELECT DISTINCT b FROM t") == [(2,)]


def test_table_can_be_dropped_once_the_view_is_prepared_without_it(tables: Database) -> None:
    with open_catalog(tables.url) as catalog:
        put(catalog, "t1", "t2")
        assert show(catalog, "t2")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            tables.run("DROP TABLE t1")
        catalog.run(lambda work: work.prepare_view("t", "t2", ["t2"]), "prepare")
        tables.run("DROP TABLE t1")
    assert tables.rows("SELECT DISTINCT b FROM t") == [(2,)]
