"""Stream-table join: a stream, enriched from the current rows of a table.

    clicks.transform(enrich, users)         # topic("users", table_key="user", ...)
    clicks.transform(enrich, users, "user", sequence="version", delete=col("op") == "delete")
    clicks.transform(enrich, countries, "country")          # a DataFrame that is no stream

A streaming table is a changelog with upserts and deletes by key: a compacted topic, the changes of
a database. It is stored in the stream's state, so a lookup stays on the machine. Each batch first
applies the changes, then looks up the rows of the stream, which are emitted at once; with
`how="left"` also those without a match. Of several changes of a key, the one with the greatest
`sequence` counts, in any order of arrival. A deleted key is forgotten eventually, and a change from
before the delete would then restore it: across batches, changes of a key must arrive in the
order of their log, as topics have it.

A topic that is declared with `table_key` is loaded before the stream is read. The table may be
larger than memory: it is stored in sorted pages, and a batch reads those that can contain its keys
(state/keyed_tables.py). The changes of a batch are in memory, bucket by bucket: limit a batch with
`maxOffsetsPerTrigger`.

A table that is no stream is joined by Spark, which reads it in every batch. Without a `sequence`
its key must be unique, or rows are repeated.

The result depends on when a row arrives: rows do not wait, and none is late. If a replay must yield
the same, or the version of an earlier time is needed, use `as_of_join`. A null key matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from millstream.pipelines.columns import POSITION_COLUMN, WATERMARK_COLUMN, as_column, check_choice
from millstream.pipelines.joins.changes import changes
from millstream.pipelines.joins.frames import (
    On,
    keep_watermark,
    name_keys,
    name_order,
    other_columns,
    right_names,
    table_key,
)
from millstream.pipelines.joins.matching import (
    common_codes,
    has_null_key,
    is_true,
    newest,
    take_or_null,
)
from millstream.pipelines.joins.weights import WEIGHT
from millstream.pipelines.state import BucketState, InputSpec, Operator, TableSpec
from millstream.pipelines.state.keys import HASH, Numbers, distinct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left"]
_STREAM = "stream"
_TABLE = "table"
_TABLE_KEY = "_table_key_"


@dataclass(frozen=True)
class ChangeLog:
    """The table's side; `carried` are its columns in the result."""

    schema: pa.Schema
    keys: tuple[str, ...]
    carried: tuple[str, ...]
    sequence: str
    deleted: str | None = None


class Enrich(Operator):
    """The operator: pure, on columns. Keeps the newest row of each key of the table."""

    def __init__(self, stream: InputSpec, table: ChangeLog, how: How) -> None:
        self.identity = f"stream-table join by {table.sequence}, deletes by {table.deleted}"
        self.inputs = {_STREAM: stream, _TABLE: InputSpec(table.schema, table.keys)}
        self.tables = {
            _TABLE: TableSpec.carrying(
                table.schema,
                table.keys,
                None,
                used=(table.sequence, table.deleted),
                by_key=True,
            )
        }
        carried = [table.schema.field(name) for name in table.carried]
        self.schema_out = pa.schema([*stream.schema, *carried])
        self._stream = stream
        self._table = table
        self._how = how

    def kept(self) -> Mapping[str, str]:
        return {_TABLE: "the newest row of each key, until it is deleted"}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = rows[_TABLE]
        state[_TABLE].append(new.filter(pa.array(~has_null_key(new, self._table.keys))))
        state.keyed(_TABLE).merge(self._newest)
        stream = rows[_STREAM]
        if not stream.num_rows:
            return self.nothing
        hashes = distinct(stream.column(HASH).to_numpy())
        current = self._newest(state[_TABLE].select(hashes=hashes), is_whole=True)
        places = self._places(stream, current)
        if self._how == "inner":
            stream, places = stream.filter(pa.array(places >= 0)), places[places >= 0]
        return pa.RecordBatch.from_arrays(
            [
                *(stream.column(name) for name in self._stream.schema.names),
                *(take_or_null(current.column(name), places) for name in self._table.carried),
            ],
            schema=self.schema_out,
        )

    def _newest(self, rows: pa.RecordBatch, is_whole: bool) -> pa.RecordBatch:
        """Of each key the last change, without deletes that have nothing left to delete."""
        rows = newest(rows, self._table.keys, self._table.sequence, is_whole=is_whole)
        return rows.filter(pa.array(~is_true(rows, self._table.deleted))) if is_whole else rows

    def _places(self, stream: pa.RecordBatch, current: pa.RecordBatch) -> Numbers:
        """Of each row, its row of the table, which has each key once; -1 if there is none."""
        codes, current_codes = common_codes(stream, self._stream.keys, current, self._table.keys)
        at = np.full(stream.num_rows + current.num_rows, -1, np.int64)
        at[current_codes] = np.arange(current.num_rows)
        places: Numbers = at[codes]
        return places


def enrich(
    frame: DataFrame,
    table: DataFrame,
    on: On | None = None,
    *,
    sequence: str | Column | None = None,
    delete: str | Column | None = None,
    how: How = "left",
    buckets: int = 16,
) -> DataFrame:
    """Rows of a stream with the table's row of their key; see the head of this module.

    `on` names the table's primary key. A topic that was declared with `table_key` needs neither
    `on` nor `sequence` nor `delete`. Raises `ConfigError` before anything runs.
    """
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    check_choice("how", how, How)
    table = table.drop(WATERMARK_COLUMN)
    if on is None:
        on = table_key(table)
    is_log = sequence is not None or delete is not None or POSITION_COLUMN in table.columns
    if not table.isStreaming and (frame.isStreaming or not is_log):
        if is_log:
            table = _current_rows(table, on, sequence, delete)
        return _join_static(frame, table, on, how)
    left_keys, right_keys = name_keys(frame, table, on)
    table, sequence_name, delete_name = name_order(table, sequence, delete)
    without = (*right_keys, sequence_name, delete_name)
    carried = other_columns(frame, table, without, ())
    operator = Enrich(
        InputSpec(arrow_schema(frame.schema), left_keys),
        ChangeLog(arrow_schema(table.schema), right_keys, carried, sequence_name, delete_name),
        how,
    )
    result = run_operator(operator, {_STREAM: frame, _TABLE: table}, buckets)
    return keep_watermark(result, frame)


def _current_rows(
    table: DataFrame, on: On, sequence: str | Column | None, delete: str | Column | None
) -> DataFrame:
    """The rows of a changelog that is no stream."""
    table, sequence_name, delete_name = name_order(table, sequence, delete)
    keys = right_names(on)
    rows = changes(table, key=keys, sequence=sequence_name, delete=delete_name)
    return rows.drop(WEIGHT, sequence_name)


def _join_static(frame: DataFrame, table: DataFrame, on: On, how: How) -> DataFrame:
    """Spark's own join; the table's keys are renamed, as both sides may have the same names."""
    from functools import reduce

    left_keys, right_keys = name_keys(frame, table, on, static_right_allowed=True)
    carried = other_columns(frame, table, right_keys, ())
    renamed = {name: f"{_TABLE_KEY}{at}" for at, name in enumerate(right_keys)}
    terms = [
        as_column(left) == as_column(renamed[right])
        for left, right in zip(left_keys, right_keys, strict=True)
    ]
    condition = reduce(lambda a, b: a & b, terms)
    joined = frame.join(table.withColumnsRenamed(renamed), condition, how)
    return joined.select(*map(as_column, (*frame.columns, *carried)))
