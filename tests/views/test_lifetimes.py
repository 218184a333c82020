"""Views whose tables, files, writers or names change, with a crash in between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.errors import ConfigError, NotReached, StoreError
from millstream.pipelines.stores import TableSpec
from millstream.views import Views, open_views
from tests.pipelines.stores.conftest import Database
from tests.views.conftest import Shop

USERS = TableSpec("shop_by_user", ("user",), delete="_weight")


def test_dropped_table_is_refused_before_it_is_created_again(
    shop: Shop, views: Views, database: Database
) -> None:
    shop.spend(ada=1)
    database.run("DROP TABLE shop_by_user")
    for _ in range(2):  # a run that was killed then, and the next
        with database.open() as store, pytest.raises(StoreError, match="was dropped"):
            store.refuse_replaced("shop", [USERS])
    with pytest.raises(StoreError, match="shop_by_user"), views.read() as v:
        v["by_user"].range()


def test_table_that_was_created_again_is_refused(shop: Shop, database: Database) -> None:
    shop.spend(ada=1)
    database.run("DROP TABLE shop_by_user")
    with database.open() as store:
        again = Shop(store, shop.url, batch_id=shop.batch_id, offset=shop.offset).prepare()
        with pytest.raises(StoreError, match="dropped and created again"):
            again.spend(ada=1)
        with pytest.raises(StoreError, match="dropped and created again"):
            store.refuse_replaced("shop", [USERS])


def test_tables_that_are_there_are_not_refused(shop: Shop, database: Database) -> None:
    with database.open() as store:
        store.refuse_replaced("shop", [USERS])  # nothing is written yet
        shop.spend(ada=1)
        store.refuse_replaced("shop", [USERS])
        store.refuse_replaced("other", [TableSpec("nothing", ("id",))])


def test_table_that_was_dropped_for_another_pipeline_is_its_view_alone(
    shop: Shop, views: Views, database: Database
) -> None:
    shop.spend(ada=1)
    database.run("DROP TABLE shop_by_user")
    database.run("DROP TABLE shop_total")
    with database.open() as store:
        for _ in range(2):  # a run that was killed after it had listed them, and the next
            renamed = Shop(store, shop.url, "store", table="shop").prepare()
        renamed.spend(bob=2)
    with pytest.raises(ConfigError, match="no views of shop"), views.read():
        pass
    with open_views(shop.url, "store") as opened, opened.read() as v:
        assert v["by_user"].range() == [{"user": "bob", "spent": 2}]


def test_reader_does_not_go_back_to_an_older_copy(tmp_path: Path) -> None:
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    database = Database(f"sqlite:///{file}")
    with database.open() as store:
        shop = Shop(store, database.url).prepare()
        shop.spend(ada=1)
    shutil.copy(file, copy)
    with database.open() as store:
        shop = Shop(store, database.url, batch_id=0, offset=1).prepare()
        shop.spent = {"ada": 1}
        shop.spend(ada=1)
    with open_views(database.url, "shop") as views:
        with views.read() as v:
            last = v.stamp
        for it in tmp_path.glob("store.db*"):
            it.unlink()
        shutil.move(copy, file)
        with pytest.raises(NotReached, match="up to offset 1"), views.read(last, timeout=0):
            pass
    with database.open() as store:
        restored = Shop(store, database.url).prepare()
        restored.begins, restored.batch_id, restored.offset = 2, 1, 2
        with pytest.raises(StoreError, match="behind their checkpoint"):
            restored.spend(ada=1)
