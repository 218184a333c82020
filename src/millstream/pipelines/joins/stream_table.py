"""Stream-table join: a stream, enriched from the current rows of a table.

    clicks.transform(enrich, users)         # topic("users", table_key="user", ...)
    clicks.transform(enrich, users, "user", sequence="version", delete=col("op") == "delete")
    clicks.transform(enrich, countries, "country")          # a DataFrame that is no stream
    bids.transform(enrich, auctions, {"auction": "id"}, sequence="opened_at", how="inner",
                   time="bid_at", wait="1 minute", where=col("category") == 10)

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

With `wait`, a row whose key is not in the table is stored until the key arrives, or until the
watermark reaches `time + wait`, when it is emitted as a row without a match. Other rows do not
wait. `where` restricts the table: of a row for which it does not hold only the key is stored, and
rows of the stream with this key are without a match at once, since there is nothing to wait for.

The result depends on when a row arrives, and none is late. If a replay must yield the same, or the
version of an earlier time is needed, use `as_of_join`. A null key matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    POSITION_COLUMN,
    WATERMARK_COLUMN,
    as_column,
    check_choice,
    check_time,
    check_watermark,
    name_column,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.hidden import hide_again, show_watermark
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
    numbers_of,
    take_or_null,
)
from millstream.pipelines.joins.weights import WEIGHT
from millstream.pipelines.plans import check_not_aggregated, expression_text
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec, Table
from millstream.pipelines.state.keys import HASH, Numbers, distinct
from millstream.pipelines.state.tables import concat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left"]
_STREAM = "stream"
_TABLE = "table"
_WAITING = "waiting"
_EXCLUDED = "_excluded"
_TABLE_KEY = "_table_key_"


@dataclass(frozen=True)
class ChangeLog:
    """The table's side; `carried` are its columns in the result. Rows that are `excluded` do not
    match, but nothing waits for them; `where` is the condition, in text."""

    schema: pa.Schema
    keys: tuple[str, ...]
    carried: tuple[str, ...]
    sequence: str
    deleted: str | None = None
    excluded: str | None = None
    where: str | None = None


class Waiting(NamedTuple):
    """How long rows without a match wait, by which column."""

    time: str
    wait_us: int


class Enrich(Operator):
    """The operator: pure, on columns. Keeps the newest row of each key of the table, and the rows
    of the stream that wait for theirs."""

    by_arrival = "enrich"

    def __init__(
        self, stream: InputSpec, table: ChangeLog, how: How, waiting: Waiting | None = None
    ) -> None:
        self.identity = f"stream-table join by {table.sequence}, deletes by {table.deleted}"
        if table.where is not None:  # rows were stored without their values, or with them
            self.identity += f", where {table.where}"
        self.inputs = {_STREAM: stream, _TABLE: InputSpec(table.schema, table.keys)}
        self.tables: dict[str, StateTableSpec] = {
            _TABLE: StateTableSpec.carrying(
                table.schema,
                table.keys,
                None,
                used=(table.sequence, table.deleted, table.excluded),
                by_key=True,
            )
        }
        if waiting is not None:
            self.tables[_WAITING] = StateTableSpec.carrying(
                stream.schema, stream.keys, waiting.time
            )
        carried = [table.schema.field(name) for name in table.carried]
        self.schema_out = pa.schema([*stream.schema, *carried])
        self._stream = stream
        self._table = table
        self._how = how
        self._waiting = waiting

    def kept(self) -> Mapping[str, str]:
        kept = {_TABLE: "the newest row of each key, until it is deleted"}
        if self._waiting is not None:
            wait = duration_text(self._waiting.wait_us)
            kept[_WAITING] = f"until their key is in the table, for {wait} at most"
        return kept

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = rows[_TABLE]
        new = new.filter(pa.array(~has_null_key(new, self._table.keys)))
        state[_TABLE].append(new)
        state.keyed(_TABLE).merge(self._newest)
        stream = rows[_STREAM]
        found = [self.nothing]
        if self._waiting is not None:
            found.append(self._stop_waiting(state, self._waiting, watermark_us))
            stream = concat([stream, state[_WAITING].take(self._keys_as_in_stream(new))])
        if stream.num_rows:
            hashes = distinct(stream.column(HASH).to_numpy())
            current = self._newest(state[_TABLE].select(hashes=hashes), is_whole=True)
            places = self._places(stream, current)
            if self._waiting is not None:
                stream, places = self._keep_waiting(state[_WAITING], self._waiting, stream, places)
            found.append(self._rows_out(stream, places, current))
        if self._waiting is not None:
            state.wake_at(self._wake_us(state[_WAITING], self._waiting))
        return concat(found)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _rows_out(
        self, stream: pa.RecordBatch, places: Numbers, current: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Rows with their row of the table, if they have one that is not excluded."""
        is_excluded = np.append(is_true(current, self._table.excluded), False)
        places = np.where(is_excluded[places], -1, places)
        if self._how == "inner":
            stream, places = stream.filter(pa.array(places >= 0)), places[places >= 0]
        return pa.RecordBatch.from_arrays(
            [
                *(stream.column(name) for name in self._stream.schema.names),
                *(take_or_null(current.column(name), places) for name in self._table.carried),
            ],
            schema=self.schema_out,
        )

    def _stop_waiting(
        self, state: BucketState, waiting: Waiting, watermark_us: int
    ) -> pa.RecordBatch:
        """The rows that have waited long enough, without a match."""
        over_us = state.advance("waited", watermark_us - waiting.wait_us).now_us
        over = state[_WAITING].select(None, over_us)
        state[_WAITING].expire(over_us + 1)
        nowhere = np.full(over.num_rows, -1, np.int64)
        return self._rows_out(over, nowhere, self.no_rows()[_TABLE])

    def _keep_waiting(
        self, table: Table, waiting: Waiting, stream: pa.RecordBatch, places: Numbers
    ) -> tuple[pa.RecordBatch, Numbers]:
        """Store the rows without a match, unless their wait is over, or they have no key or no
        time; the others are returned."""
        is_waiting = (places < 0) & ~has_null_key(stream, (*self._stream.keys, waiting.time))
        is_waiting &= numbers_of(stream.column(waiting.time)) >= table.horizon_us
        if not is_waiting.any():
            return stream, places
        table.append(stream.filter(pa.array(is_waiting)))
        return stream.filter(pa.array(~is_waiting)), places[~is_waiting]

    def _wake_us(self, table: Table, waiting: Waiting) -> int | None:
        """The watermark at which the next row has waited long enough."""
        times = [page.first_us for page in table.pages.values()]
        return max(min(times), table.horizon_us) + waiting.wait_us if times else None

    def _keys_as_in_stream(self, new: pa.RecordBatch) -> pa.RecordBatch:
        """The keys of rows of the table, under the names that the stream has for them."""
        columns = [new.column(name) for name in (HASH, *self._table.keys)]
        return pa.RecordBatch.from_arrays(columns, names=[HASH, *self._stream.keys])

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
    where: Column | None = None,
    how: How = "left",
    time: str | Column | None = None,
    wait: Duration | None = None,
    buckets: int = 16,
) -> DataFrame:
    """Rows of a stream with the table's row of their key; see the head of this module.

    `on` names the table's primary key. A topic that was declared with `table_key` needs neither
    `on` nor `sequence` nor `delete`. `wait` needs `time`, with a watermark. Raises `ConfigError`
    before anything runs.
    """
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    check_choice("how", how, How)
    table = table.drop(WATERMARK_COLUMN)
    if on is None:
        on = table_key(table)
    frame, waiting = _check_waiting(frame, time, wait)
    is_log = sequence is not None or delete is not None or POSITION_COLUMN in table.columns
    if not table.isStreaming and (frame.isStreaming or not is_log):
        if is_log:
            table = _current_rows(table, on, sequence, delete)
        return _join_static(frame, table if where is None else table.where(where), on, how)
    left_keys, right_keys = name_keys(frame, table, on)
    given = frame
    if waiting is None:  # a row that has waited would have the watermark of an earlier batch
        frame = show_watermark(frame)
    table, sequence_name, delete_name = name_order(table, sequence, delete)
    without = (*right_keys, sequence_name, delete_name)
    carried = other_columns(frame, table, without, (_EXCLUDED,))
    excluded = condition = None
    if where is not None:
        excluded, condition = _EXCLUDED, expression_text(table, where)
        table = _mark_excluded(table, where, carried)
    schema = arrow_schema(table.schema)
    operator = Enrich(
        InputSpec(arrow_schema(frame.schema), left_keys),
        ChangeLog(schema, right_keys, carried, sequence_name, delete_name, excluded, condition),
        how,
        waiting,
    )
    result = run_operator(operator, {_STREAM: frame, _TABLE: table}, buckets)
    return result if waiting is not None else hide_again(keep_watermark(result, frame), given)


def _check_waiting(
    frame: DataFrame, time: str | Column | None, wait: Duration | None
) -> tuple[DataFrame, Waiting | None]:
    if wait is None or time is None:
        if wait is not None or time is not None:
            raise ConfigError(
                "rows wait by their time: give both time= and wait=, like "
                'time="clicked_at", wait="1 minute", or neither'
            )
        return frame, None
    frame, name = name_column(frame, time)
    check_time(frame, name, zoneless_allowed=True)
    check_not_aggregated(frame)
    check_watermark(frame, name, "rows would wait forever")
    return frame, Waiting(name, duration_us(wait, "wait"))


def _mark_excluded(table: DataFrame, where: Column, carried: tuple[str, ...]) -> DataFrame:
    """The table with a column that marks the rows for which the condition does not hold; these
    have nothing but their key and their order."""
    from pyspark.sql.functions import coalesce, lit, when

    holds = coalesce(where, lit(False))
    columns = [
        when(holds, as_column(name)).alias(name) if name in carried else as_column(name)
        for name in table.columns
    ]
    return table.select(*columns, (~holds).alias(_EXCLUDED))


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
