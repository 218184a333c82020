"""Views in both databases, written without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from millstream.pipelines.stores import Store, TableSpec
from millstream.views import Views, open_views
from tests.pipelines.stores.conftest import Database, database, postgres, postgres_database

__all__ = ["database", "postgres", "postgres_database"]

USERS = TableSpec("by_user", ("user",), delete="_weight")
TOTAL = TableSpec("total", ("id",), delete="_weight")
USERS_SCHEMA = pa.schema([("user", pa.string()), ("spent", pa.int64()), ("_weight", pa.int64())])
TOTAL_SCHEMA = pa.schema([("id", pa.int64()), ("spent", pa.int64()), ("_weight", pa.int64())])


@dataclass
class Shop:
    """A writer of two views: what each user spent, and the sum of it."""

    store: Store
    url: str
    query: str = "shop"
    public: str = ""  # the query, if this is another generation of it
    keeps: int = 10
    prefix: str = ""  # of the views' names
    table: str = ""  # what the names of the tables begin with, unless it is the query
    topic_id: str = "id-1"
    batch_id: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        self.spent: dict[str, int] = {}
        self.begins: int | None = None  # where the next batch begins, if that is to be said

    def prepare(self) -> Shop:
        self.store.prepare(USERS_SCHEMA, self._users)
        self.store.prepare(TOTAL_SCHEMA, self._total)
        views = [("by_user", self._users), ("total", self._total)]
        named = [(self.prefix + name, table, self.keeps) for name, table in views]
        self.store.list_views(self.public or self.query, named, writer=self.query)
        return self

    @property
    def _table(self) -> str:
        return self.table or self.query.replace("+", "_")

    @property
    def _users(self) -> TableSpec:
        return TableSpec(f"{self._table}_by_user", USERS.key, delete=USERS.delete)

    @property
    def _total(self) -> TableSpec:
        return TableSpec(f"{self._table}_total", TOTAL.key, delete=TOTAL.delete)

    def spend(self, records: int = 1, **amounts: int | None) -> None:
        """One batch of so many records; a user whose amount is None leaves."""
        before = dict(self.spent)
        for user, amount in amounts.items():
            if amount is None:
                del self.spent[user]
            else:
                self.spent[user] = self.spent.get(user, 0) + amount
        rows = [
            (user, spent, weight)
            for table, weight in ((before, -1), (self.spent, 1))
            for user, spent in table.items()
            if before.get(user) != self.spent.get(user)
        ]
        totals = [(0, sum(before.values()), -1)] if before else []
        totals += [(0, sum(self.spent.values()), 1)]
        self.batch_id += 1
        self.offset += records
        self.store.write_arrow(
            [
                (_table(rows, USERS_SCHEMA), self._users),
                (_table(totals, TOTAL_SCHEMA), self._total),
            ],
            self.batch_id,
            self.query,
            json.dumps({"orders": {"0": self.offset}}),
            topic_ids=json.dumps({"orders": self.topic_id}),
            begins=None if self.begins is None else json.dumps({"orders": {"0": self.begins}}),
        )


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(it, field.type) for it, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@pytest.fixture
def shop(database: Database) -> Iterator[Shop]:
    with database.open() as store:
        yield Shop(store, database.url).prepare()


@pytest.fixture
def views(shop: Shop) -> Iterator[Views]:
    with open_views(shop.url, "shop") as opened:
        yield opened
