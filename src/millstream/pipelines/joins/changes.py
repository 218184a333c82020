"""A table's changelog as changes with weights: removed rows and added rows.

    changes(posts)                          # topic("posts", table_key="post_id", ...)
    posts.transform(changes, key="post_id", sequence="version", delete=col("op") == "d")

A changelog has the new version of a row, or that it was deleted, by primary key: a compacted topic,
the events of a database. To join, count or sum such a table, the old version is needed too. So each
change is emitted as the row that it replaces, with `_weight` -1, and the row that it adds, with
`_weight` 1. The sum of the weights is the table.

Of several changes of a row in one batch, the one with the greatest `sequence` counts, and the
others are not emitted. A change that is not newer than the stored row does nothing. Across batches,
changes of one row must arrive in the order of their log, as topics have it: a deleted row is
forgotten eventually, and an older change would then restore it. A delete needs only the columns of
the key and the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN, kind_of
from millstream.pipelines.joins.frames import check_comparable, name_order, table_key
from millstream.pipelines.joins.matching import is_true, newest
from millstream.pipelines.joins.weights import WEIGHT, WEIGHT_FIELD, consolidate, weighted
from millstream.pipelines.row_positions import is_position
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
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
        self.tables = {
            _ROWS: StateTableSpec.carrying(
                schema, tuple(keys), None, used=(sequence, deleted), by_key=True
            )
        }
        hidden = {deleted, sequence if is_position(schema.field(sequence).type) else None}
        self.schema_out = pa.schema(
            [*(field for field in schema if field.name not in hidden), WEIGHT_FIELD]
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

    def _newest(self, rows: pa.RecordBatch, is_whole: bool = True) -> pa.RecordBatch:
        return newest(rows, self._keys, self._sequence, is_whole=is_whole)

    def _left_over(self, rows: pa.RecordBatch, is_whole: bool) -> pa.RecordBatch:
        left = self._newest(rows, is_whole)
        return self._alive(left) if is_whole else left

    def _alive(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array(~is_true(rows, self._deleted)))


def changes(
    frame: DataFrame,
    *,
    key: str | Sequence[str] | None = None,
    sequence: str | Column | None = None,
    delete: str | Column | None = None,
    buckets: int = 16,
) -> DataFrame:
    """A changelog with `_weight`; see the head of this module. A topic that was declared with
    `table_key` needs no arguments. Raises `ConfigError`."""
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    if WEIGHT in frame.columns:
        raise ConfigError(f"there is already a column {WEIGHT}: these are changes with weights")
    frame = frame.drop(WATERMARK_COLUMN)
    keys = table_key(frame) if key is None else (key,) if isinstance(key, str) else tuple(key)
    for name in keys:
        kind_of(frame, name)
    frame, sequence_name, delete_name = name_order(frame, sequence, delete)
    check_comparable(frame)
    operator = Changes(arrow_schema(frame.schema), keys, sequence_name, delete_name)
    return run_operator(operator, {_CHANGES: frame}, buckets)
