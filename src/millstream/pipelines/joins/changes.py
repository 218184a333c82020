"""A table's change log, as changes with weights: what was taken away, what was added.

    posts.transform(changes, "post_id", sequence="offset", deleted=col("op") == "d")

A change log says what a row is now, or that it is gone, and names the row by its primary key: a
compacted topic, the events of a database. Who joins, counts or sums such a table must know what it
was before. So each change comes out as the row that it replaces with `_weight` -1, and the row that
it brings with `_weight` 1. The sum of weights is the table.

Of several changes of a row in one batch the one with the greatest `sequence` counts, and those
between are not told; a change that is no newer than what is known (one sent again) does nothing.
Across batches changes of one row come in the order of their log, as topics have it: a row that is
gone is forgotten sooner or later, and a still older change would bring it back.
A delete needs no columns but the key and the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    kind_of,
    name_column,
)
from millstream.pipelines.joins.frames import (
    check_comparable,
    check_flag,
    check_order,
)
from millstream.pipelines.joins.matching import is_true, newest
from millstream.pipelines.joins.weights import WEIGHT, WEIGHT_FIELD, consolidate, weighted
from millstream.pipelines.state import BucketState, InputSpec, Operator, TableSpec
from millstream.pipelines.state.keys import HASH, distinct
from millstream.pipelines.state.tables import concat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CHANGES = "changes"
_ROWS = "rows"


class Changes(Operator):
    """The operator: pure, on columns. Keeps the newest row of each key."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        sequence: str,
        deleted: str | None,
    ) -> None:
        self.identity = f"changes by {sequence}, deletes by {deleted}"
        self.inputs = {_CHANGES: InputSpec(schema, tuple(keys))}
        self.tables = {_ROWS: TableSpec(schema, tuple(keys), None, by_key=True)}
        self.schema_out = pa.schema(
            [*(field for field in schema if field.name != deleted), WEIGHT_FIELD]
        )
        self._keys = tuple(keys)
        self._sequence = sequence
        self._deleted = deleted

    def kept(self) -> Mapping[str, str]:
        return {_ROWS: "the newest row of each key, until it is deleted"}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = rows[_CHANGES]
        known = self._newest(state[_ROWS].select(hashes=distinct(new.column(HASH).to_numpy())))
        both = self._newest(concat([known, new]))
        state[_ROWS].append(new)
        state.keyed(_ROWS).merge(self._left_over)
        names = self.schema_out.names[:-1]
        return consolidate(
            concat(
                [
                    self.nothing,
                    weighted(self._alive(known).select(names), -1),
                    weighted(self._alive(both).select(names), 1),
                ]
            )
        )

    def _newest(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return newest(rows, self._keys, (self._sequence,))

    def _left_over(self, rows: pa.RecordBatch, is_whole: bool) -> pa.RecordBatch:
        return self._alive(self._newest(rows)) if is_whole else self._newest(rows)

    def _alive(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array(~is_true(rows, self._deleted)))


def changes(
    frame: DataFrame,
    key: str | Sequence[str],
    *,
    sequence: str | Column,
    deleted: str | Column | None = None,
    buckets: int = 16,
) -> DataFrame:
    """A change log with `_weight`; see the head of this module. Raises `ConfigError`."""
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    keys = (key,) if isinstance(key, str) else tuple(key)
    for name in keys:
        kind_of(frame, name)
    if WEIGHT in frame.columns:
        raise ConfigError(f"there is a column {WEIGHT} already: these are changes with weights")
    frame, sequence_name = name_column(frame, sequence)
    frame, deleted_name = name_column(frame, deleted)
    check_order(frame, sequence_name)
    check_flag(frame, deleted_name)
    check_comparable(frame)
    operator = Changes(arrow_schema(frame.schema), keys, sequence_name, deleted_name)
    return run_operator(operator, {_CHANGES: frame}, buckets)
