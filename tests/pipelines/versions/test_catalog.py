"""Documents, views and tables in stores, in transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from millstream.errors import ConfigError, RoleChanged, StoreError
from millstream.pipelines.stores import Mode, TableSpec
from millstream.pipelines.stores.spec import Role
from millstream.pipelines.versions import catalog as catalog_module
from millstream.pipelines.versions.catalog import Work, has_catalog, open_catalog
from millstream.pipelines.versions.registry import Versions
from tests.pipelines.stores.conftest import Database
from tests.pipelines.versions.conftest import Scene


def test_store_without_versions_has_none_and_gets_no_tables(database: Database) -> None:
    with open_catalog(database.url) as catalog:
        assert not catalog.exists()
        assert catalog.find("revenue") is None
        assert not catalog.exists()


def test_stores_without_views_are_refused() -> None:
    assert not has_catalog("redis://localhost")
    with pytest.raises(ConfigError, match="redis has no views"):
        open_catalog("redis://localhost")


def test_document_is_stored_replaced_and_deleted(scene: Scene) -> None:
    scene.catalog.run(lambda work: work.save(Versions("revenue", 1)), "save")
    scene.catalog.run(lambda work: work.save(Versions("revenue", 2)), "save")
    assert scene.document().number == 2
    assert [it.pipeline for it in scene.catalog.read(lambda work: work.load_all())] == ["revenue"]
    scene.catalog.run(lambda work: work.delete("revenue"), "delete")
    assert scene.catalog.find("revenue") is None


def test_view_shows_another_table_after_a_transaction(scene: Scene) -> None:
    scene.store.write_arrow([], 0, "nobody")
    for number in (1, 2):
        scene.database.run(f"CREATE TABLE t{number} (a INTEGER)")
        scene.database.run(f"INSERT INTO t{number} VALUES ({number})")
    scene.catalog.run(lambda work: work.put_view("t", "t1"), "show")
    assert scene.read("SELECT * FROM t") == [(1,)]

    def fail(work: Work) -> None:
        work.put_view("t", "t2")
        raise ValueError

    with pytest.raises(ValueError):
        scene.catalog.run(fail, "show")
    assert scene.read("SELECT * FROM t") == [(1,)]
    scene.catalog.run(lambda work: work.put_view("t", "t2"), "show")
    assert scene.read("SELECT * FROM t") == [(2,)]
    kinds = scene.catalog.read(lambda work: [work.kind(it) for it in ("t", "t1", "t3")])
    assert kinds == ["view", "table", None]
    scene.catalog.run(lambda work: work.drop_view("t"), "drop")
    scene.catalog.run(lambda work: work.drop_table("t1"), "drop")
    assert scene.catalog.read(lambda work: work.kind("t")) is None


def test_view_gets_other_columns_and_keeps_its_grants(postgres_database: Database) -> None:
    database = postgres_database
    database.run("CREATE TABLE t1 (a int)")
    database.run("CREATE TABLE t2 (b text, c int)")
    database.run("DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN duplicate_object THEN END $$")
    with open_catalog(database.url) as catalog:
        catalog.run(lambda work: work.put_view("t", "t1"), "show")
        database.run("GRANT SELECT ON t TO reader")
        catalog.run(lambda work: work.put_view("t", "t2"), "show")
        assert catalog.read(lambda work: work.columns("t")) == ["b", "c"]
        assert database.rows("SELECT has_table_privilege('reader', 't', 'SELECT')") == [(True,)]
        database.run("CREATE VIEW above AS SELECT b FROM t")
        with pytest.raises(ConfigError, match="view above depends on view t"):
            catalog.run(lambda work: work.put_view("t", "t1"), "show")


def test_reader_that_does_not_end_is_named_and_nothing_is_changed(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "LOCK_WAIT_MS", 300)
    for number in (1, 2):
        postgres_database.run(f"CREATE TABLE t{number} (a INTEGER)")
        postgres_database.run(f"INSERT INTO t{number} VALUES ({number})")

    def show(table: str) -> None:
        with open_catalog(postgres_database.url) as catalog:
            catalog.run(lambda work: work.with_locks(lambda: work.put_view("t", table)), "show")

    show("t1")
    with psycopg.connect(postgres_database.url) as reader:
        reader.execute("SELECT * FROM t")
        with pytest.raises(StoreError, match=r"readers hold locks .* changed nothing"):
            show("t2")
        assert reader.execute("SELECT * FROM t").fetchall() == [(1,)]
    show("t2")
    assert postgres_database.rows("SELECT * FROM t") == [(2,)]


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
def test_copy_of_a_renamed_table_has_its_columns_rows_and_key(scene: Scene, mode: Mode) -> None:
    rows = pa.table({"user": ["ada"], "data__v1": [1]})  # has the name of the table in it
    table = TableSpec("a", () if mode == "append" else ("user",), mode=mode)
    scene.store.write_arrow([(rows, table)], 0, "q")
    scene.catalog.run(lambda work: work.rename("a", "a__v1"), "rename")
    for old, new in (("a__v1", "a__v2"), ("a__v2", "a__v3")):
        scene.catalog.run(lambda work, old=old, new=new: work.copy_table(old, new), "copy")  # type: ignore[misc]
    assert scene.read('SELECT "user", "data__v1" FROM a__v3') == [("ada", 1)]
    with scene.database.open() as store:
        store.write_arrow([(rows, replace(table, name="a__v3"))], 0, "q@3")
    assert len(scene.read("SELECT * FROM a__v3")) == (2 if mode == "append" else 1)


def test_batch_by_an_old_role_is_refused(scene: Scene) -> None:
    scene.catalog.run(lambda work: work.save(Versions("revenue", 3)), "save")
    written: Any = scene.store.write_many([], 0, "revenue", role=Role("revenue", 3))
    assert written
    with pytest.raises(RoleChanged, match=r"\(switch 2, now 3\)"):
        scene.store.write_many([], 1, "revenue", role=Role("revenue", 2))
    assert scene.store.last_batch("revenue") == 0


def test_erased_progress_keeps_its_epoch(scene: Scene) -> None:
    scene.store.write_arrow([], 4, "revenue", "{}")
    before = scene.store.progress("revenue")
    assert before is not None
    scene.catalog.run(lambda work: work.erase_progress("revenue"), "erase")
    after = scene.store.progress("revenue")
    assert after is not None
    assert (after.epoch, after.batch_id, after.offsets) == (before.epoch + 1, None, None)
