"""Stamps and listings in the store: restarts, other columns, forgotten queries, two writers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import NotReached, StoreError, WriterFenced
from millstream.pipelines.stores import TableSpec
from millstream.views import Views, open_views
from tests.pipelines.stores.conftest import Database
from tests.views.conftest import Shop


def test_restart_keeps_stamps_and_history(shop: Shop, views: Views, database: Database) -> None:
    shop.spend(ada=1)
    shop.spend(ada=2)
    with database.open() as store:
        again = Shop(store, shop.url, batch_id=shop.batch_id, offset=shop.offset).prepare()
        again.spent = shop.spent
        again.spend(ada=3)
    with views.read() as v:
        assert v.stamp.numbers == {"shop": 3}
        assert v["by_user"].changes(2) == [
            ({"user": "ada", "spent": 1}, {"user": "ada", "spent": 3})
        ]


def test_batch_that_is_repeated_is_stamped_once(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    shop.batch_id, shop.offset, shop.spent = -1, 0, {}
    shop.spend(ada=1)
    with views.read() as v:
        assert v.stamp.numbers == {"shop": 1}


def test_batch_that_fails_leaves_no_stamp(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    rows = pa.table({"user": ["bob", None], "spent": [1, 2], "_weight": [1, 1]})
    table = TableSpec("shop_by_user", ("user",), delete="_weight")
    with pytest.raises(StoreError):
        shop.store.write_arrow([(rows, table)], 1, "shop")
    with views.read() as v:
        assert v.stamp.numbers == {"shop": 1}
        assert v["by_user"].count() == 1


def test_older_writer_is_refused_and_stamps_nothing(
    shop: Shop, views: Views, database: Database
) -> None:
    shop.spend(ada=1)
    with database.open() as store:
        newer = Shop(store, shop.url, batch_id=0, offset=1).prepare()
        newer.spent = {"ada": 1}
        newer.spend(ada=1)
        with pytest.raises(WriterFenced):
            shop.spend(ada=50)
        with views.read() as v:
            assert v.stamp.numbers == {"shop": 2}
            assert v["by_user"].get("ada") == {"user": "ada", "spent": 2}


def test_forgotten_query_has_no_stamp_until_its_next_batch(shop: Shop, views: Views) -> None:
    shop.spend(5, ada=1)
    shop.store.forget("shop")
    with pytest.raises(NotReached, match="no batch"), views.read(timeout=0.01):
        pass
    shop.offset, shop.batch_id = 0, -1
    shop.spend(1, ada=1)
    with views.read() as v:
        assert v.stamp.offsets == {("orders", 0): 1}


def test_view_that_gets_a_column_starts_its_history_again(
    shop: Shop, views: Views, database: Database
) -> None:
    shop.spend(ada=1)
    shop.spend(ada=1)
    database.run("ALTER TABLE shop_by_user ADD COLUMN country TEXT")
    table = TableSpec("shop_by_user", ("user",))
    rows = pa.table({"user": ["bob"], "spent": [1], "country": ["nz"]})
    with database.open() as store:
        store.prepare(rows.schema, table)
        store.list_views("shop", [("by_user", table, 10)])
        store.forget("shop")
        store.write_arrow([(rows, table)], 2, "shop")
    with views.read() as v:
        assert list(v) == ["by_user"]  # the other one was taken out of the pipeline
        assert v["by_user"].get("bob") == {"user": "bob", "spent": 1, "country": "nz"}
        assert v["by_user"].get("ada") == {"user": "ada", "spent": 2, "country": None}


def test_store_finds_the_writer_of_a_view_until_its_table_is_dropped(
    shop: Shop, database: Database
) -> None:
    shown, other_case, plain = (
        TableSpec(name, ("user",)) for name in ("shop_by_user", "Shop_By_User", "plain")
    )
    with database.open() as store:
        assert store.view_writer(shown) == "shop"
        assert store.view_writer(other_case) == ("shop" if database.is_sqlite else None)
        assert store.view_writer(plain) is None
        store.prepare(pa.schema({"user": pa.string()}), plain)
        assert store.view_writer(plain) is None
    database.run("DROP TABLE shop_by_user")
    database.run("CREATE TABLE shop_by_user (name TEXT)")
    with database.open() as store:
        assert store.view_writer(shown) is None


def test_names_that_need_quotes(database: Database) -> None:
    table = TableSpec('odd "name"', ("a key",))
    rows = pa.table({"a key": [1], 'v"': ["x"]})
    with database.open() as store:
        store.prepare(rows.schema, table)
        store.list_views("it's", [("odd", table, 2)])
        for batch_id in range(2):
            store.write_arrow([(rows, table)], batch_id, "it's")
    with open_views(database.url, "it's") as views, views.read() as v:
        assert v["odd"].get(1) == {"a key": 1, 'v"': "x"}
        assert v["odd"].changes(2) == []  # the same row again
        assert v.sql("SELECT count(*) AS n FROM odd") == [{"n": 1}]
