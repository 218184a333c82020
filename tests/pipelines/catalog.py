"""A maintained join whose definition changes: items with the labels of their categories, beside the
same in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from millstream.pipelines.joins.changes import Changes
from millstream.pipelines.joins.table_table import Side, TableJoin
from millstream.pipelines.joins.weights import WEIGHT, WEIGHT_FIELD
from millstream.pipelines.plans import parse_operator
from millstream.pipelines.running.state_columns import StateColumns
from millstream.pipelines.state import Operator
from millstream.pipelines.state.stored_columns import NO_GENERATIONS
from millstream.pipelines.state.trial import Trial

ITEM = pa.schema([("item", pa.int64()), ("cat", pa.string()), ("name", pa.string())])
LABEL = pa.schema([("cat", pa.string()), ("label", pa.string())])
VERSION, GONE = pa.field("version", pa.int64()), pa.field("gone", pa.bool_())
Row = dict[str, Any]


def joining(item: pa.Schema) -> list[Operator]:
    logs = [(item, "item"), (LABEL, "cat")]
    left, right = (of.append(VERSION).append(WEIGHT_FIELD) for of, _ in logs)
    return [
        *(Changes(of.append(VERSION).append(GONE), [key], "version", "gone") for of, key in logs),
        TableJoin(
            Side(left, ("cat",), tuple(item.names)), Side(right, ("cat",), ("label",)), "inner"
        ),
    ]


class Catalog:
    """Operators of one definition after another continue the state, as in a pipeline."""

    def __init__(self) -> None:
        self._items: dict[Any, Row] = {}
        self._labels: dict[Any, Row] = {}
        self._emitted: Counter[tuple[Any, ...]] = Counter()
        self._trials: list[Trial] = []
        self._columns = StateColumns()
        self._versions = count()
        self._batches = 0

    def define(self, *, has_c: bool) -> None:
        """Remove the column c of items, or add it, and run a batch without rows."""
        self._item = ITEM.append(pa.field("c", pa.string())) if has_c else ITEM
        operators = joining(self._item)
        described = [parse_operator(it.describe(4, number)) for number, it in enumerate(operators)]
        self._columns = self._columns.from_batch(self._batches, described)
        found = self._columns.of_operators(described)
        before, self._trials = self._trials, []
        for number, it in enumerate(operators):
            trial = Trial(it, 4, found.get(number, NO_GENERATIONS))
            if before:
                trial.buckets = before[number].buckets
            self._trials.append(trial)
        if not has_c:  # nor do these rows have it when it comes back
            self._items = {key: row | {"c": None} for key, row in self._items.items()}
            emitted, self._emitted = self._emitted, Counter()
            for (item, name, _, label), weight in emitted.items():
                self._emitted[item, name, None, label] += weight
        self.change()

    def change(
        self, items: Sequence[int] = (), cats: Sequence[str] = (), gone: Collection[Any] = ()
    ) -> None:
        """A batch with changes of these rows: new versions, except for those that are gone."""
        rows = [{"item": it, "cat": f"cat{it % 3}", **self._values("name", "c")} for it in items]
        labels = [{"cat": it, **self._values("label")} for it in cats]
        left = self._trials[0].feed({"changes": self._log(rows, self._item, gone)})
        right = self._trials[1].feed({"changes": self._log(labels, LABEL, gone)})
        for it in self._trials[2].feed({"left": left, "right": right}).to_pylist():
            self._emitted[it["item"], it["name"], it.get("c"), it["label"]] += it[WEIGHT]
        self._items |= {it["item"]: it for it in rows}
        self._labels |= {it["cat"]: it for it in labels}
        self._items = {key: it for key, it in self._items.items() if key not in {*items} & {*gone}}
        self._labels = {key: it for key, it in self._labels.items() if key not in {*cats} & {*gone}}
        self._batches += 1

    def check(self) -> None:
        """What was emitted adds up to the join."""
        joined = {
            (it["item"], it["name"], it["c"], self._labels[it["cat"]]["label"]): 1
            for it in self._items.values()
            if it["cat"] in self._labels
        }
        assert {row: weight for row, weight in self._emitted.items() if weight} == joined

    def _values(self, *names: str) -> Row:
        version = next(self._versions)
        values = {name: f"{name}{version}" for name in names}
        return values | {"version": version} | ({} if "c" in self._item.names else {"c": None})

    @staticmethod
    def _log(rows: Sequence[Row], of: pa.Schema, gone: Collection[Any]) -> pa.RecordBatch:
        marked = [row | {"gone": row[of.names[0]] in gone} for row in rows]
        return pa.RecordBatch.from_pylist(marked, schema=of.append(VERSION).append(GONE))
