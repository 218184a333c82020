"""Last rows: for each row, aggregates of it and the rows before it, so many of its key. A view.

    sales.transform(last_rows, key="seller", order_by="sold_at, id", rows=10, n="count(*)",
                    mean="avg(price)")

SQL's `PARTITION BY seller ORDER BY sold_at, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW`, kept
current. A row that comes after others it belongs before changes what they say. So results come as
changes with `_weight`: a new row with 1; a row whose aggregates changed as it was with -1, as it is
now with 1. Their sum is, after every batch, what SQL says of all rows so far. Over a table every
weight is 1, or how often there is the same row.

`order_by` names columns of integers, times or dates, the first one first; rows that are equal in
all of them are ordered by content, on every replay alike. All rows are kept, unless
`allowed_lateness` says how far behind the watermark one may come, by the first of these columns,
which is then a time; what is later is dropped, and counted in the query's progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN, check_time, check_watermark, kind_of
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.joins.frames import check_comparable, check_order
from millstream.pipelines.joins.matching import numbers_of, sort_versions
from millstream.pipelines.joins.weights import WEIGHT, WEIGHT_FIELD, consolidate, weighted
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import drop_late
from millstream.pipelines.state import (
    HASH,
    BucketState,
    InputSpec,
    Operator,
    StateTableSpec,
    key_codes,
)
from millstream.pipelines.state.keys import Numbers, distinct
from millstream.pipelines.state.tables import concat
from millstream.pipelines.windows.aggregates import parse_aggregates
from millstream.pipelines.windows.measures import Measure, add_measured, check_measures
from millstream.pipelines.windows.ranges import aggregate, narrow
from millstream.pipelines.windows.sliding import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LATE_ROWS = "late.last_rows"  # where the query's progress counts those that were dropped
_ROWS = "rows"


class LastRows(Operator):
    """The operator: pure, on columns. Without an allowed lateness nothing is late."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        order: Sequence[str],
        row_count: int,
        measures: Sequence[Measure],
        carried: Sequence[str],
        allowed_lateness_us: int | None = None,
    ) -> None:
        self.identity = f"last {row_count} rows by {', '.join(order)}"
        if allowed_lateness_us is None:
            self.identity += ", for ever"
        self.inputs = {_ROWS: InputSpec(schema, tuple(keys))}
        used = [*order, *(it.column for it in measures)]
        table = StateTableSpec.carrying(schema, tuple(keys), None, used=used, by_key=True)
        self.tables = {_ROWS: table}
        self._results = [pa.field(it.name, it.type_in(schema)) for it in measures]
        self.schema_out = pa.schema(
            [*(schema.field(name) for name in carried), *self._results, WEIGHT_FIELD]
        )
        self._keys = tuple(keys)
        self._order = tuple(order)
        self._row_count = row_count
        self._measures = tuple(measures)
        self._carried = tuple(carried)
        self._lateness_us = allowed_lateness_us
        self.title = f"last {row_count} rows by {', '.join(order)}"

    def kept(self) -> Mapping[str, str]:
        if self._lateness_us is None:
            return {_ROWS: "forever: a row may come before any other"}
        return {
            _ROWS: f"those after the watermark, and of each key {self._row_count - 1} before it"
        }

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        horizon_us = watermark_us
        if self._lateness_us is not None:
            horizon_us = state.advance("late", watermark_us - self._lateness_us).now_us
        new, late = self._part_late(rows[_ROWS], horizon_us)
        table = state.keyed(_ROWS)
        known = table.select(hashes=distinct(new.column(HASH).to_numpy()))
        table.append(new)
        table.merge(lambda rows, _: self._needed(rows, horizon_us))
        changed = self._changes(concat([known, new]), known.num_rows)
        return concat([changed, self._late_rows(late)])

    def _changes(self, rows: pa.RecordBatch, old_count: int) -> pa.RecordBatch:
        """Of old rows and new ones after them, what is different now."""
        codes = key_codes(rows, self._keys)
        order = sort_versions(rows, codes, self._order)
        is_new = order >= old_count
        now = self._windows(codes[order])
        first, end = narrow(is_new, *now)
        is_touched = end > first
        was_there = is_touched & ~is_new
        before = self._windows(codes[order][~is_new])
        chosen = np.flatnonzero(was_there[~is_new])
        before = Windows(before.first[chosen], before.end[chosen])
        chosen = np.flatnonzero(is_touched)
        now = Windows(now.first[chosen], now.end[chosen])
        return consolidate(
            concat(
                [
                    self.nothing,
                    weighted(self._measured(rows, order[~is_new], order[was_there], before), -1),
                    weighted(self._measured(rows, order, order[is_touched], now), 1),
                ]
            )
        )

    def _windows(self, codes: Numbers) -> Windows:
        """Of rows in their order, for each: itself and those before it, so many of its key."""
        places = np.arange(len(codes))
        starts = np.maximum.accumulate(np.where(np.diff(codes, prepend=-1) != 0, places, 0))
        return Windows(np.maximum(starts, places - self._row_count + 1), places + 1)

    def _measured(
        self, rows: pa.RecordBatch, order: Numbers, shown: Numbers, windows: Windows
    ) -> pa.RecordBatch:
        """The rows that are shown, with the aggregates of their windows over rows in order."""
        taken = pa.array(order)
        results = [
            aggregate(it.kind, rows.column(it.column or HASH).take(taken), *windows, it.fraction)
            for it in self._measures
        ]
        carried = [rows.column(name).take(pa.array(shown)) for name in self._carried]
        fields = list(self.schema_out)[:-1]
        return pa.RecordBatch.from_arrays([*carried, *results], schema=pa.schema(fields))

    def _part_late(
        self, rows: pa.RecordBatch, horizon_us: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        if self._lateness_us is None:
            return rows, rows.slice(0, 0)
        is_late = numbers_of(rows.column(self._order[0])) <= horizon_us
        return rows.filter(pa.array(~is_late)), rows.filter(pa.array(is_late))

    def _late_rows(self, late: pa.RecordBatch) -> pa.RecordBatch:
        """Without results, and with no weight: to be counted."""
        carried = [late.column(name) for name in self._carried]
        nulls = [pa.nulls(late.num_rows, field.type) for field in [*self._results, WEIGHT_FIELD]]
        return pa.RecordBatch.from_arrays([*carried, *nulls], schema=self.schema_out)

    def _needed(self, rows: pa.RecordBatch, horizon_us: int) -> pa.RecordBatch:
        """All that is not behind the horizon, and of each key as many rows before it as a row that
        is on time looks back to."""
        if self._lateness_us is None:
            return rows
        codes = key_codes(rows, self._keys)
        order = sort_versions(rows, codes, self._order)
        times = numbers_of(rows.column(self._order[0]))[order]
        is_behind = times <= horizon_us
        # A row is superfluous if so many rows after it are behind the horizon that all that comes
        # stands after them.
        codes = codes[order]
        later = np.arange(len(codes)) + self._row_count - 1
        within = np.minimum(later, len(codes) - 1)
        is_superfluous = (later < len(codes)) & (codes[within] == codes) & is_behind[within]
        return rows.take(pa.array(order[~is_superfluous]))


def last_rows(
    frame: DataFrame,
    *,
    key: str | Sequence[str],
    order_by: str,
    rows: int,
    allowed_lateness: Duration | None = None,
    buckets: int = 16,
    count_as: str = LATE_ROWS,
    **aggregates: str | Column,
) -> DataFrame:
    """Aggregates of the last rows of a key; see the head of this module. Raises `ConfigError`."""
    from pyspark.sql.functions import col

    from millstream.pipelines.state import arrow_schema, run_operator

    frame = frame.drop(WATERMARK_COLUMN)
    names = (key,) if isinstance(key, str) else tuple(key)
    order = tuple(part.strip() for part in order_by.split(","))
    check_rows(frame, names, order, rows)
    lateness_us = None
    if allowed_lateness is not None:
        lateness_us = duration_us(allowed_lateness, "allowed_lateness", zero_allowed=True)
        check_time(frame, order[0], zoneless_allowed=True)
        check_not_aggregated(frame)
        check_watermark(frame, order[0], "nothing would ever be late")
    carried = frame.columns
    frame, measures = add_measured(frame, parse_aggregates(aggregates))
    schema = arrow_schema(frame.schema)
    check_measures(measures, schema, (*carried, WEIGHT))
    operator = LastRows(schema, names, order, rows, measures, carried, lateness_us)
    result = run_operator(operator, {_ROWS: frame}, buckets)
    # Late rows have no weight.
    return drop_late(result, col(WEIGHT).isNull(), Lateness(count_as=count_as))


def check_rows(frame: DataFrame, keys: Sequence[str], order: Sequence[str], row_count: int) -> None:
    for name in (*keys, *order):
        kind_of(frame, name)
    for name in order:
        check_order(frame, name)
    check_comparable(frame)
    if row_count < 1:
        raise ConfigError(f"rows={row_count}: a row and those before it are 1 at least")
    if WEIGHT in frame.columns:
        raise ConfigError(
            f"there is a column {WEIGHT}: these are changes, and rows that are taken away again "
            "cannot be followed by others yet"
        )
