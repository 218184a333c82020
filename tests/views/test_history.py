"""Rows as they were: the history of a view against copies of it at every stamp."""

from __future__ import annotations

import random
from typing import Any

from millstream.views import Views
from millstream.views.relations import relation
from tests.views.conftest import Shop


def rows_at(views: Views, number: int) -> list[tuple[Any, ...]]:
    with views.read() as v:
        entry = v["by_user"].entry
        newest = v.stamp.numbers["shop"]
        text = relation(entry, number, newest)
        return sorted((row["user"], row["spent"]) for row in v.sql(text))


def test_view_at_every_kept_stamp_is_its_copy(shop: Shop, views: Views) -> None:
    rng = random.Random(1)
    copies: dict[int, list[tuple[Any, ...]]] = {0: []}
    for number in range(1, 25):
        amounts: dict[str, int | None] = {}
        for user in rng.sample(["ada", "bob", "carl", "dora"], rng.randint(0, 3)):
            leaves = user in shop.spent and rng.random() < 0.4
            amounts[user] = None if leaves else rng.randint(0, 3)
        shop.spend(**amounts)
        copies[number] = sorted(shop.spent.items())
        for kept in range(max(number - 10, 0), number + 1):
            assert rows_at(views, kept) == copies[kept]


def test_rows_that_others_change_are_kept_too(shop: Shop, views: Views) -> None:
    from tests.pipelines.stores.conftest import Database

    shop.spend(ada=1)
    shop.spend(bob=2)
    Database(shop.url).run("""UPDATE shop_by_user SET spent = 99 WHERE "user" = 'ada'""")
    assert rows_at(views, 1) == [("ada", 1)]
    assert rows_at(views, 2) == [("ada", 99), ("bob", 2)]
