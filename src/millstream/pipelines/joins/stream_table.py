"""Stream-table join: a stream, enriched from a table as it is when a row comes.

    clicks.transform(enrich, users, "user_id", sequence="offset", deleted=col("op") == "delete")

The table comes as its change log, in upserts and deletes by key (a compacted topic, a database's
changes), and is kept here, beside the stream: a row is looked up without leaving the machine.
In each batch changes are applied first, then the stream's rows get what the table says of
their key, and come out at once; with `how="left"` also where it says nothing. Of several changes of
a key the one with the greatest `sequence` counts, in whatever order they come. A key that was
deleted is forgotten sooner or later, and a change from before the delete would then bring it back:
across batches, changes of a key come in the order of their log, as topics have it.

At the start the table is loaded before the stream flows if its topic is declared so:
`topic("users", load_first=True)`. The table may be larger than memory: it lies in sorted pages of
which a batch reads those that its keys can be in (state/runs.py). Of a batch's own changes those of
one bucket are in memory at once: limit a batch with `maxOffsetsPerTrigger`.

What a row gets depends on when it comes: no row waits, and none is late. Who needs the same on
every replay, or the version of a time in the past, takes `as_of_join`. A null key matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from millstream.pipelines.columns import (
    name_column,
)
from millstream.pipelines.joins.frames import (
    On,
    check_choice,
    check_flag,
    check_order,
    keep_watermark,
    name_keys,
    other_columns,
)
from millstream.pipelines.joins.matching import (
    common_codes,
    has_null_key,
    is_true,
    newest,
    take_or_null,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, TableSpec
from millstream.pipelines.state.keys import HASH, Numbers, distinct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left"]
_STREAM = "stream"
_TABLE = "table"


@dataclass(frozen=True)
class ChangeLog:
    """The table's side; `carried` are the columns that come out."""

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
        self.tables = {_TABLE: TableSpec(table.schema, table.keys, None, by_key=True)}
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
        """Of each key the last change; no delete that has nothing left to delete."""
        rows = newest(rows, self._table.keys, (self._table.sequence,))
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
    on: On,
    *,
    sequence: str | Column,
    deleted: str | Column | None = None,
    how: How = "left",
    buckets: int = 16,
) -> DataFrame:
    """Rows of a stream with what a table says of their key; see the head of this module.

    `on` names the table's primary key. Raises `ConfigError` before anything runs.
    """
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    check_choice("how", how, How)
    left_keys, right_keys = name_keys(frame, table, on)
    table, sequence_name = name_column(table, sequence)
    table, deleted_name = name_column(table, deleted)
    check_order(table, sequence_name)
    check_flag(table, deleted_name)
    without = (*right_keys, sequence_name, deleted_name)
    carried = other_columns(frame, table, without, ())
    operator = Enrich(
        InputSpec(arrow_schema(frame.schema), left_keys),
        ChangeLog(arrow_schema(table.schema), right_keys, carried, sequence_name, deleted_name),
        how,
    )
    result = run_operator(operator, {_STREAM: frame, _TABLE: table}, buckets)
    return keep_watermark(result, frame)
