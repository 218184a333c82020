"""Table-table join: two changing tables, joined as a changing table. A maintained view.

    timeline = posts.transform(table_join, follows, "author")

Each side is a topic that was declared with `table_key`, or changes with `_weight` (see changes.py
and weights.py). The result has weights too: an insert is a row with weight 1, a delete is its row
with -1, an update is both. After every batch, the sum of all that was emitted is the join of both
tables as they are then: inner, left, right or full, whatever was inserted, updated or deleted on
either side. Rows are compared by all of their columns; a row that is there twice has weight 2.

A batch costs what it changes: the changes of one side are joined with the rows of the other that
have their key, and nothing is recomputed. Both tables are stored completely, because any row may
change later. No row is late, as there is no time: a change takes effect when it arrives, and
corrects earlier output.

`_op` is "delete" or "insert". Within a bucket, deletes come first. A null key matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import POSITION_COLUMN, WATERMARK_COLUMN, check_choice
from millstream.pipelines.joins.changes import changes
from millstream.pipelines.joins.frames import On, check_comparable, name_keys, other_columns
from millstream.pipelines.joins.matching import common_codes, has_null_key, pairs, take_or_null
from millstream.pipelines.joins.weights import WEIGHT, WEIGHT_FIELD, consolidate, weights_of
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, distinct
from millstream.pipelines.state.tables import concat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How = Literal["inner", "left", "right", "full"]
OP = "_op"
_LEFT, _RIGHT = "left", "right"


@dataclass(frozen=True)
class Side:
    """One table: its columns, with `_weight`; `carried` are its columns in the result."""

    schema: pa.Schema
    keys: tuple[str, ...]
    carried: tuple[str, ...]


@dataclass(frozen=True)
class Delta:
    """Rows of one side: those that were there, then those that are new; with the key's number."""

    rows: pa.RecordBatch
    codes: Numbers
    weights: Numbers
    old_count: int

    @property
    def places(self) -> tuple[Numbers, Numbers]:
        """Of old rows and of new ones, those whose key can match."""
        matching = np.flatnonzero(self.codes >= 0)
        return matching[matching < self.old_count], matching[matching >= self.old_count]


class TableJoin(Operator):
    """The operator: pure, on columns."""

    def __init__(self, left: Side, right: Side, how: How) -> None:
        self.identity = f"table join, {how}"
        self._sides = {_LEFT: left, _RIGHT: right}
        self.inputs = {
            name: InputSpec(side.schema, side.keys) for name, side in self._sides.items()
        }
        self.tables = {
            name: StateTableSpec.carrying(side.schema, side.keys, None, used=(WEIGHT,), by_key=True)
            for name, side in self._sides.items()
        }
        self._joined = pa.schema(
            [side.schema.field(name) for side in (left, right) for name in side.carried]
            + [WEIGHT_FIELD]
        )
        self.schema_out = pa.schema([*self._joined, pa.field(OP, pa.string())])
        self._how = how

    def kept(self) -> Mapping[str, str]:
        return {name: f"the {name} table, whole" for name in self._sides}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = {name: rows[name] for name in self._sides}
        hashes = distinct(np.concatenate([it.column(HASH).to_numpy() for it in new.values()]))
        old = {name: consolidate(state[name].select(hashes=hashes)) for name in self._sides}
        left, right = self._deltas(old, new)
        for name in self._sides:
            state[name].append(new[name])
            state.keyed(name).merge(lambda rows, _: consolidate(rows))
        found = [*self._pairs(left, right)]
        if self._how in ("left", "full"):
            found.append(self._alone(left, right, is_left=True))
        if self._how in ("right", "full"):
            found.append(self._alone(right, left, is_left=False))
        return _with_op(consolidate(concat(found)), self.schema_out)

    def _deltas(
        self, old: Mapping[str, pa.RecordBatch], new: Mapping[str, pa.RecordBatch]
    ) -> tuple[Delta, Delta]:
        rows = {name: concat([old[name], new[name]]) for name in self._sides}
        keys = [self._sides[name].keys for name in (_LEFT, _RIGHT)]
        codes = common_codes(rows[_LEFT], keys[0], rows[_RIGHT], keys[1])
        left, right = (
            Delta(
                rows[name],
                np.where(has_null_key(rows[name], self._sides[name].keys), -1, numbers),
                weights_of(rows[name]),
                old[name].num_rows,
            )
            for name, numbers in zip((_LEFT, _RIGHT), codes, strict=True)
        )
        return left, right

    def _pairs(self, left: Delta, right: Delta) -> list[pa.RecordBatch]:
        """New with old, old with new, new with new: a product's change."""
        left_old, left_new = left.places
        right_old, right_new = right.places
        right_all = np.concatenate([right_old, right_new])
        found = []
        for left_places, right_places in ((left_new, right_all), (left_old, right_new)):
            a, b = pairs(left.codes[left_places], right.codes[right_places])
            a, b = left_places[a], right_places[b]
            found.append(self._rows_out(left, a, right, b, left.weights[a] * right.weights[b]))
        return found

    def _alone(self, side: Delta, other: Delta, *, is_left: bool) -> pa.RecordBatch:
        """Rows without a partner: new ones, and old ones that lost their last or got their first.

        With `alone` 1 or 0, the change of `rows * alone` is `old * (after - before) + new * after`.
        """
        count = max(int(side.codes.max(initial=-1)), int(other.codes.max(initial=-1))) + 1
        other_old, other_new = other.places
        partners = np.zeros(count + 1, np.int64)  # the last place is that of null keys: code -1
        np.add.at(partners, other.codes[other_old], other.weights[other_old])
        before = (partners == 0).astype(np.int64)
        np.add.at(partners, other.codes[other_new], other.weights[other_new])
        after = (partners == 0).astype(np.int64)
        is_old = np.arange(side.rows.num_rows) < side.old_count
        factors = after[side.codes] - np.where(is_old, before[side.codes], 0)
        places = np.flatnonzero(factors)
        nobody = np.full(len(places), -1, np.int64)
        weights = (side.weights * factors)[places]
        if is_left:
            return self._rows_out(side, places, other, nobody, weights)
        return self._rows_out(other, nobody, side, places, weights)

    def _rows_out(
        self,
        left: Delta,
        left_places: Numbers,
        right: Delta,
        right_places: Numbers,
        weights: Numbers,
    ) -> pa.RecordBatch:
        columns = [
            take_or_null(delta.rows.column(name), places)
            for delta, places, side in (
                (left, left_places, self._sides[_LEFT]),
                (right, right_places, self._sides[_RIGHT]),
            )
            for name in side.carried
        ]
        return pa.RecordBatch.from_arrays([*columns, pa.array(weights)], schema=self._joined)


def _with_op(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    is_delete = weights_of(rows) < 0
    words = pa.array(["insert", "delete"]).take(pa.array(is_delete.astype(np.int8)))
    return pa.RecordBatch.from_arrays([*rows.columns, words], schema=schema)


def table_join(
    left: DataFrame, right: DataFrame, on: On, *, how: How = "inner", buckets: int = 16
) -> DataFrame:
    """Changes of the join of two tables; see the head of this module.

    Both frames are tables, or have `_weight` from `changes`. Except for the keys, no two columns
    may have the same name. Raises `ConfigError` before anything runs.
    """
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    check_choice("how", how, How)
    left, right = _with_weights(left, _LEFT, buckets), _with_weights(right, _RIGHT, buckets)
    left_keys, right_keys = name_keys(left, right, on)
    kept = left.drop(WEIGHT)
    dropped = [WEIGHT, *(it for it in right_keys if it in left_keys and how in ("inner", "left"))]
    carried = other_columns(kept, right, dropped, (WEIGHT, OP))
    operator = TableJoin(
        Side(arrow_schema(left.schema), left_keys, tuple(kept.columns)),
        Side(arrow_schema(right.schema), right_keys, carried),
        how,
    )
    return run_operator(operator, {_LEFT: left, _RIGHT: right}, buckets)


def _with_weights(frame: DataFrame, side: str, buckets: int) -> DataFrame:
    """The changes of one side. Raises `ConfigError` if they are unknown."""
    frame = frame.drop(WATERMARK_COLUMN)
    if WEIGHT not in frame.columns and POSITION_COLUMN in frame.columns:
        frame = changes(frame, buckets=buckets)
    if WEIGHT not in frame.columns:
        raise ConfigError(
            f"the {side} side has no column {WEIGHT}: declare its topic as a table with "
            'topic(..., table_key="..."), or convert a changelog with '
            'frame.transform(changes, key="its key", sequence="version"), or, if rows are only '
            f'added, add frame.withColumn("{WEIGHT}", lit(1).cast("bigint"))'
        )
    check_comparable(frame)
    return frame
