"""Reads of views at one stamp, in SQLite and PostgreSQL."""

from __future__ import annotations

import threading

import pytest

from millstream.errors import ConfigError, NotReached, TooMuch, ViewError
from millstream.views import Views, open_views
from tests.pipelines.stores.conftest import Database
from tests.views.conftest import Shop


def test_read_has_all_views_at_one_stamp(shop: Shop, views: Views) -> None:
    shop.spend(2, ada=5, bob=7)
    with views.read() as v:
        shop.spend(1, ada=100)  # while the reader reads
        assert v.stamp.offsets == {("orders", 0): 2}
        assert v.stamp.topic_ids == {"orders": "id-1"}
        assert v["by_user"].get("ada") == {"user": "ada", "spent": 5}
        assert v["total"].get(0) == {"id": 0, "spent": 12}
        assert v["by_user"].get("carl") is None
        assert list(v) == ["by_user", "total"]
    with views.read() as v:
        assert v["total"].get(0) == {"id": 0, "spent": 112}


def test_rows_that_leave_are_gone(shop: Shop, views: Views) -> None:
    shop.spend(ada=5, bob=7)
    shop.spend(ada=None)
    with views.read() as v:
        assert v["by_user"].range() == [{"user": "bob", "spent": 7}]
        assert v["by_user"].count() == 1


def test_range_is_in_the_order_of_the_key(shop: Shop, views: Views) -> None:
    shop.spend(ada=1, bob=2, carl=3, dora=4)
    with views.read() as v:
        users = v["by_user"]
        assert [it["user"] for it in users.range("b", "d")] == ["bob", "carl"]
        assert [it["user"] for it in users.range(limit=2, descending=True)] == ["dora", "carl"]
        assert [it["user"] for it in users.range(("carl",))] == ["carl", "dora"]


def test_sql_names_views_and_only_reads(shop: Shop, views: Views) -> None:
    shop.spend(ada=1, bob=2)
    with views.read() as v:
        text = "SELECT u.user AS who, t.spent FROM by_user u, total t WHERE u.spent > 1;"
        text = text.replace("u.user", 'u."user"')
        assert v.sql(text) == [{"who": "bob", "spent": 3}]
        assert v["total"].sql("WITH x AS (SELECT 1 AS one) SELECT one FROM x") == [{"one": 1}]
        for bad in ("DELETE FROM by_user", "SELECT 1; SELECT 2", "SELECT nothing FROM by_user", ""):
            with pytest.raises(ViewError):
                v.sql(bad)
        assert v["by_user"].count() == 2  # the snapshot can still be read


def test_sql_has_limits(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
    with views.read() as v:
        with pytest.raises(TooMuch, match="10 rows"):
            v.sql(endless + "i FROM n LIMIT 1000", rows_max=10)
        with pytest.raises(TooMuch, match="longer than"):
            v.sql(endless + "count(*) FROM n", seconds_max=0.05)


def test_sql_writes_nothing_by_way_of_a_select(postgres_database: Database) -> None:
    with postgres_database.open() as store, open_views(postgres_database.url, "shop") as views:
        shop = Shop(store, postgres_database.url).prepare()
        shop.spend(ada=1)
        with views.read() as v, pytest.raises(ViewError):
            v.sql('WITH gone AS (DELETE FROM "shop_by_user" RETURNING 1) SELECT * FROM gone')
        with views.read() as v:
            assert v["by_user"].count() == 1


def test_reader_waits_until_its_own_write_is_seen(shop: Shop, views: Views) -> None:
    shop.spend(ada=5)
    begun = threading.Event()

    def write() -> None:
        begun.wait()
        shop.spend(bob=1)
        shop.spend(bob=1)

    writer = threading.Thread(target=write)
    writer.start()
    begun.set()
    with views.read(at_least=("orders", 0, 2), timeout=60) as v:
        assert v.stamp.offsets["orders", 0] >= 3
        assert v["by_user"].get("bob") == {"user": "bob", "spent": 2}
    writer.join()


def test_position_that_is_not_reached_says_how_far_the_views_are(shop: Shop, views: Views) -> None:
    shop.spend(3, ada=5)
    with (
        pytest.raises(NotReached, match=r"orders-0 up to offset 3, and offset 3 is asked for"),
        views.read(at_least=("orders", 0, 3), timeout=0.05),
    ):
        pass


def test_position_of_another_topic_is_refused_at_once(shop: Shop, views: Views) -> None:
    shop.spend(ada=5)
    with pytest.raises(ViewError, match="not of topic users"), views.read(("users", 0, 1)):
        pass


def test_stamp_of_a_deleted_topic_does_not_count(shop: Shop, views: Views) -> None:
    """A recreated topic starts over, so an offset of it may be smaller than one of the old."""
    shop.spend(100, ada=5)
    recreated = {"orders": "id-2"}
    with (
        pytest.raises(NotReached, match="earlier topic orders"),
        views.read(("orders", 0, 3), timeout=0.05, topic_ids=recreated),
    ):
        pass
    shop.topic_id, shop.offset = "id-2", 3
    shop.spend(1, ada=1)
    with views.read(("orders", 0, 3), topic_ids=recreated) as v:
        assert v["by_user"].get("ada") == {"user": "ada", "spent": 6}


def test_views_that_do_not_exist_are_named(shop: Shop, views: Views) -> None:
    with pytest.raises(NotReached, match="no batch yet"), views.read(timeout=0.01):
        pass
    shop.spend(ada=1)
    with views.read() as v, pytest.raises(ViewError, match="there are by_user, total"):
        v["nothing"]
    with (
        open_views(shop.url, "shoop") as wrong,
        pytest.raises(ConfigError, match="views of shop"),
        wrong.read(),
    ):
        pass


def test_store_without_views_says_so(database: Database) -> None:
    with database.open() as store:
        store.progress("shop")
    with (
        open_views(database.url, "shop") as views,
        pytest.raises(ConfigError, match="no views"),
        views.read(),
    ):
        pass


def test_earlier_stamps_can_be_read_through_changes(shop: Shop, views: Views) -> None:
    shop.spend(ada=5, bob=7)
    shop.spend(ada=None)
    shop.spend(ada=2, bob=1)
    with views.read() as v:
        users = v["by_user"]
        bob, ada = {"user": "bob", "spent": 7}, {"user": "ada", "spent": 5}
        assert users.changes(1) == [(None, ada), (None, bob)]
        assert users.changes(2) == [(ada, None)]
        assert users.changes(3) == [
            (None, {"user": "ada", "spent": 2}),
            (bob, {"user": "bob", "spent": 8}),
        ]


def test_changes_that_are_no_longer_kept_are_refused(shop: Shop, views: Views) -> None:
    for _ in range(12):
        shop.spend(ada=1)
    with views.read() as v:
        assert len(v["by_user"].changes(3)) == 1
        with pytest.raises(ViewError, match="kept for 10 stamps"):
            v["by_user"].changes(2)


@pytest.fixture
def stock(shop: Shop) -> Shop:
    """Another query over the same topic, in the same store."""
    return Shop(shop.store, shop.url, query="stock", prefix="stock_").prepare()


def test_views_of_two_queries_are_read_at_a_common_cut(shop: Shop, stock: Shop) -> None:
    """Each has batches of its own; the one that is ahead is read as it was."""
    shop.spend(2, ada=2)
    shop.spend(2, ada=2)
    shop.spend(2, bob=2)
    stock.spend(4, tea=4)
    with open_views(shop.url, "shop", "stock") as views:
        with views.read() as v:
            assert v.stamp.offsets == {("orders", 0): 4}
            assert v["by_user"].range() == [{"user": "ada", "spent": 4}]
            assert v["stock_by_user"].range() == [{"user": "tea", "spent": 4}]
            assert v.sql("SELECT t.spent - s.spent AS d FROM total t, stock_total s") == [{"d": 0}]
        stock.spend(1, tea=1)
        stock.spend(1, tea=1)
        with views.read(at_least=("orders", 0, 5)) as v:
            assert v.stamp.offsets == {("orders", 0): 6}
            assert v["total"].get(0) == {"id": 0, "spent": 6}


def test_queries_that_never_meet_have_no_common_cut(shop: Shop, stock: Shop) -> None:
    shop.spend(2, ada=2)
    stock.spend(3, tea=3)
    with (
        open_views(shop.url, "shop", "stock") as views,
        pytest.raises(NotReached, match="no common stamp"),
        views.read(timeout=0.01),
    ):
        pass


def test_views_of_the_same_name_are_refused(shop: Shop) -> None:
    other = Shop(shop.store, shop.url, query="other").prepare()
    shop.spend(ada=1)
    other.spend(ada=1)
    with (
        open_views(shop.url, "shop", "other") as views,
        pytest.raises(ViewError, match="two of these pipelines have a view"),
        views.read(),
    ):
        pass
