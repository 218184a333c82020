"""A view of a join, kept in a table: changes -> table_join -> upsert by weight, without Spark."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.pipelines.joins.changes import Changes
from millstream.pipelines.joins.table_table import Side, TableJoin
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.stores import TableSpec, open_store

BUCKETS = 16
ITEMS = pa.schema(
    [("item", pa.int64()), ("category", pa.string()), ("at", pa.int64()), ("gone", pa.bool_())]
)
CATEGORIES = pa.schema(
    [("category", pa.string()), ("label", pa.string()), ("at", pa.int64()), ("gone", pa.bool_())]
)
WEIGHT = pa.field("_weight", pa.int64())
CATEGORY_NAMES = [f"category-{number}" for number in range(16)]


class View:
    """Items with the labels of their categories, in a SQLite table with one row per item."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = open_store(f"sqlite:///{path}")
        self._items = Trial(Changes(ITEMS, ["item"], "at", "gone"), BUCKETS)
        self._categories = Trial(Changes(CATEGORIES, ["category"], "at", "gone"), BUCKETS)
        left = pa.schema([ITEMS.field("item"), ITEMS.field("category"), WEIGHT])
        right = pa.schema([CATEGORIES.field("category"), CATEGORIES.field("label"), WEIGHT])
        sides = (
            Side(left, ("category",), ("item", "category")),
            Side(right, ("category",), ("label",)),
        )
        self._join = Trial(TableJoin(*sides, "inner"), BUCKETS)
        self._batches = 0

    def feed(self, items: list[dict[str, Any]], categories: list[dict[str, Any]]) -> None:
        left = self._items.feed({"changes": pa.RecordBatch.from_pylist(items, schema=ITEMS)})
        right = self._categories.feed(
            {"changes": pa.RecordBatch.from_pylist(categories, schema=CATEGORIES)}
        )
        changes = self._join.feed(
            {
                "left": left.select(["item", "category", "_weight"]),
                "right": right.select(["category", "label", "_weight"]),
            }
        )
        table = TableSpec("view", ("item",), delete="_weight")
        rows = pa.Table.from_batches([changes]).select(["item", "label", "_weight", "_op"])
        self._store.write_arrow([(rows, table)], self._batches, "view")
        self._batches += 1

    def rows(self) -> dict[int, str]:
        with sqlite3.connect(self._path) as connection:
            return dict(connection.execute("SELECT item, label FROM view"))


def item(number: int, category: int, at: int, *, gone: bool = False) -> dict[str, Any]:
    return {"item": number, "category": CATEGORY_NAMES[category % 16], "at": at, "gone": gone}


def test_view_keeps_every_row_when_join_keys_change(tmp_path: Path) -> None:
    """The old and the new row of an item come from different buckets, which have no order."""
    view = View(tmp_path / "view.db")
    categories = [
        {"category": name, "label": name.upper(), "at": 0, "gone": False} for name in CATEGORY_NAMES
    ]
    view.feed([item(number, number, number) for number in range(100)], categories)
    assert view.rows() == {it: CATEGORY_NAMES[it % 16].upper() for it in range(100)}

    view.feed([item(it, it * 7 + 3, 100 + it) for it in range(100)], [])
    assert view.rows() == {it: CATEGORY_NAMES[(it * 7 + 3) % 16].upper() for it in range(100)}

    view.feed([item(it, it, 200 + it, gone=it % 2 == 0) for it in range(100)], [])
    assert view.rows() == {it: CATEGORY_NAMES[it % 16].upper() for it in range(1, 100, 2)}
