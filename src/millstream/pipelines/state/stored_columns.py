"""The columns of a table as its pages have them.

A page is only rewritten when one of its rows changes. So when a column has been removed from an
operator, some pages still have its values, and others no longer have them. If the column comes
back, those values must not: two operators would have different versions of one row, and the removal
of a row would not match the row that was added.

Hence each column has a *generation*, 0 from the beginning. A column that is added to a running
pipeline gets a new number, from the driver, which all buckets get with every call
(running/state_columns.py). Column `country` of generation 3 is stored as `country#3`. Pages from
before have no column of this name, whether they were rewritten since or not, so it is null in their
rows.

A column that an earlier version stored by another name keeps that name in its table.

Streams that are started without a pipeline have no generations. For these, the index of a bucket
lists the columns that were dropped, and state is refused if one of them comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from millstream.pipelines.state.keys import HASH
from millstream.pipelines.state.page_columns import from_page, to_page
from millstream.pipelines.state.pages import StateMismatch, check_same
from millstream.pipelines.state.tables import StateTableSpec

Generations: TypeAlias = Mapping[str, Mapping[str, int]]
"""The generation of columns, by table and column; 0 where there is none."""
GENERATIONS_PROPERTY = "millstream.generations"
"""Spark's property of a query's tasks: the generations as JSON, by the number of the operator."""
NO_GENERATIONS: Generations = MappingProxyType({})


class StoredColumns:
    """The columns of one table of a bucket. `listed` is the table in the bucket's index, if any;
    raises `StateMismatch` if its pages cannot be read as the operator's table."""

    def __init__(
        self,
        table: str,
        spec: StateTableSpec,
        generations: Mapping[str, int],
        listed: Mapping[str, Any] | None,
    ) -> None:
        self._table = table
        self._spec = spec
        self._generations = generations
        self._names = {name: self._stored_name(name, listed) for name in spec.schema.names}
        if len({*self._names.values()}) < len(self._names):
            raise StateMismatch(
                f"two columns of {table} would be stored under one name: "
                f"{', '.join(sorted(self._names.values()))}. Rename one of them"
            )
        self._schema = pa.schema([it.with_name(self._names[it.name]) for it in spec.schema])
        self._dropped: list[str] | None = []
        if listed is not None:
            self._check(listed)
            self._dropped = self._still_dropped(listed)

    @property
    def layout(self) -> dict[str, Any]:
        """For the index."""
        return {
            "columns": {field.name: str(field.type) for field in self._schema},
            "dropped": self._dropped,
            "renamed": {
                column: name
                for column, name in self._names.items()
                if column != name and not self._generations.get(column)
            },
            "keys": list(self._spec.keys),
            "time": self._spec.time,
        }

    def to_page(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = [self._names.get(name, name) for name in rows.schema.names]
        return to_page(rows.rename_columns(names), self._spec.keys)

    def from_page(self, page: pa.RecordBatch) -> pa.RecordBatch:
        rows = from_page(page, self._schema, self._spec.keys)
        return rows.rename_columns([HASH, *self._spec.schema.names])

    def _stored_name(self, column: str, listed: Mapping[str, Any] | None) -> str:
        generation = self._generations.get(column, 0)
        if generation:
            return f"{column}#{generation}"
        if listed is not None and column not in listed["columns"]:
            earlier = [listed.get("renamed", {}).get(column)]
            earlier += [name for renamed, name in self._spec.earlier if renamed == column]
            return next((name for name in earlier if name in listed["columns"]), column)
        return column

    def _still_dropped(self, listed: Mapping[str, Any]) -> list[str] | None:
        """What pages may have besides the columns; None if an earlier version did not record it."""
        if not listed["pages"]:
            return []
        dropped = listed.get("dropped")
        if dropped is None:
            return None
        return sorted({*listed["columns"], *dropped} - {*self._names.values()})

    def _check(self, listed: Mapping[str, Any]) -> None:
        check_same(f"keys of {self._table}", listed["keys"], list(self._spec.keys))
        check_same(f"time of {self._table}", listed["time"], self._spec.time)
        for field in self._schema:
            if field.name in listed["columns"]:
                stored = listed["columns"][field.name]
                check_same(f"type of {field.name}", stored, str(field.type))
        for column in self._spec.schema.names:
            if self._names[column] not in listed["columns"] and listed["pages"]:
                self._check_added(column, listed)

    def _check_added(self, column: str, listed: Mapping[str, Any]) -> None:
        """Raise `StateMismatch` if rows that were stored without the column cannot be used."""
        columns, dropped = listed["columns"], listed.get("dropped")
        if self._names[column] in (dropped or ()):
            raise StateMismatch(
                f"column {column} was removed from the stored {self._table} and has come back: "
                "only some of the older rows still have its values. Add it under another name, or "
                "use a new checkpoint, which computes the state from the beginning"
            )
        if column not in self._spec.carried:
            others = [it for it in columns if it != column and not it.startswith(f"{column}#")]
            stored = ", ".join(others)
            check_same(f"columns of {self._table}", stored, f"{column} in addition")
        if dropped is None and not self._generations.get(column):
            raise StateMismatch(
                f"column {column} is new in the stored {self._table}. An earlier version of "
                "Millstream wrote these, and did not record whether the column was removed before. "
                "Run at least one batch of the pipeline without it and then add it, or use a new "
                "checkpoint, which computes the state from the beginning"
            )
