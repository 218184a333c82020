"""What must be done to the rows of a batch before they go into a table, column by column."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connect.tables.schema import Column, Layout
from millstream.connect.tables.spec import DELETE_WORDS, TableSpec
from millstream.errors import StoreError

NOT_UTF8_CURE = "replace what is wrong with F.make_valid_utf8(), or write the column as binary"
_ROW = "millstream row number"
_WEIGHT, _ADDED, _TAKEN = "millstream weight", "millstream added", "millstream taken"


@dataclass(frozen=True)
class Rows:
    """Rows that are ready for a table: in the order of the layout's columns, by key."""

    table: pa.Table
    deleted: Any  # numpy booleans, one per row; None if the table has no delete column

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def kept(self) -> pa.Table:
        return self.table if self.deleted is None else self.table.filter(pa.array(~self.deleted))

    def removed(self) -> pa.Table | None:
        """Those that are marked as deleted, if any."""
        if self.deleted is None or not self.deleted.any():
            return None
        return self.table.filter(pa.array(self.deleted))


def make_ready(batch: pa.Table, layout: Layout) -> Rows:
    """Refuse null keys, leave the last row of each key (upsert), the row that its weights leave
    (upsert by weight), or the rows since its last delete (replace), and sort by key.

    Sorted rows touch the pages of a table and its index one after another: three times the speed
    where keys come at random. They stay in their order where the database tells which keys are
    equal, and so which row is the last.
    """
    spec = layout.table
    if spec.mode != "append":
        refuse_null_keys(batch, layout)
    if layout.deletes_by_weight:
        batch = remaining_by_weight(batch, spec)
    elif spec.mode == "upsert":
        batch = last_of_each_key(batch, spec.key)
    if spec.mode == "replace" and spec.delete is not None:
        batch = since_last_delete(batch, spec)
    if spec.mode != "append" and not layout.stays_in_order:
        order = pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in spec.key])
        batch = batch.take(order)
    deleted = None
    if layout.deletes_by_weight:
        deleted = _weights(batch, spec) < 0
    elif spec.delete is not None:
        deleted = _marked(batch.column(spec.delete))
    return Rows(batch.select(list(layout.names)), deleted)


def refuse_null_keys(batch: pa.Table, layout: Layout) -> None:
    for column in layout.key:
        nulls = batch.column(column.name).null_count
        if nulls:
            raise StoreError(
                f"table {layout.table.name!r}: {nulls} of {batch.num_rows} rows have no value in "
                f"key column {column.name!r}; filter them out, or give them one with coalesce()"
            )


def last_of_each_key(batch: pa.Table, key: tuple[str, ...]) -> pa.Table:
    numbered = _numbered_keys(batch, key)
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    if len(last) == batch.num_rows:
        return batch
    return batch.take(pa.array(np.sort(last.to_numpy())))


def remaining_by_weight(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """One row of each key: the last that was added, or, where the key's weights sum to less than
    zero, one that was taken away."""
    key, weights = list(spec.key), _weights(batch, spec)
    rows = np.arange(batch.num_rows)
    numbered = (
        batch.select(key)
        .append_column(_WEIGHT, pa.array(weights))
        .append_column(_ADDED, pa.array(np.where(weights > 0, rows, -1)))
        .append_column(_TAKEN, pa.array(np.where(weights < 0, rows, -1)))
    )
    by_key = numbered.group_by(key).aggregate([(_WEIGHT, "sum"), (_ADDED, "max"), (_TAKEN, "max")])
    sums = by_key.column(f"{_WEIGHT}_sum").to_numpy()
    added = by_key.column(f"{_ADDED}_max").to_numpy()
    taken = by_key.column(f"{_TAKEN}_max").to_numpy()
    chosen = np.where(sums < 0, taken, added)
    return batch.take(pa.array(np.sort(chosen[chosen >= 0])))


def _weights(batch: pa.Table, spec: TableSpec) -> Any:
    """A null counts as 1: a row that was added."""
    return pc.fill_null(batch.column(spec.delete), 1).to_numpy().astype(np.int64)


def since_last_delete(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """Without the rows that a later row of the batch deletes; that row is kept."""
    deleted = _marked(batch.column(spec.delete))
    if not deleted.any():
        return batch
    key = list(spec.key)
    numbered = _numbered_keys(batch, spec.key)
    last = numbered.filter(pa.array(deleted)).group_by(key).aggregate([(_ROW, "max")])
    found = numbered.join(last, keys=key, join_type="left outer")
    outlived = pc.less(found.column(_ROW), pc.fill_null(found.column(f"{_ROW}_max"), -1))
    kept = found.filter(pc.invert(outlived)).column(_ROW)
    return batch.take(pa.array(np.sort(kept.to_numpy())))


def _numbered_keys(batch: pa.Table, key: tuple[str, ...]) -> pa.Table:
    return batch.select(list(key)).append_column(_ROW, pa.array(np.arange(batch.num_rows)))


def distinct_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    return rows.group_by(list(key)).aggregate([]).select(list(key))


def _marked(column: pa.ChunkedArray) -> Any:
    if pa.types.is_boolean(column.type):
        marks = column
    else:
        words = pa.array(DELETE_WORDS, column.type)
        marks = pc.is_in(pc.utf8_lower(column), value_set=words)
    return pc.fill_null(marks, False).to_numpy()


def json_texts(values: Any, column: Column) -> pa.Array:
    """Arrays, structs and maps as JSON; dates as ISO 8601, timestamps so in UTC, decimals as
    strings, bytes as base64."""
    assert column.kind == "json"
    try:
        texts = [
            None if value is None else json.dumps(plain(value), ensure_ascii=False)
            for value in values.to_pylist(maps_as_pydicts="strict")
        ]
    except (KeyError, ValueError, OverflowError) as error:
        raise StoreError(
            f"column {column.name!r} cannot be written as JSON: {_json_problem(error)}"
        ) from error
    return pa.array(texts, pa.string())


def _json_problem(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return f"a string in it is not valid UTF-8; {NOT_UTF8_CURE}"
        case KeyError():
            return "a map in it has a key twice; leave one of them out"
        case _:
            return (
                f"{error}; dates and timestamps in it must lie in the years 1 to 9999: cast others "
                "to strings"
            )


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {str(plain(name)): plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value
