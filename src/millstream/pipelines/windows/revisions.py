"""Windows with several results: preliminary, final and corrected ones.

Spark's aggregation in update mode emits the new value of a window, but neither the old value nor
whether it is final. So the aggregates of windows are kept in bucketed state, as parts that can be
added (an average is a sum and a count), one row per key and window. In each batch, a window is
emitted at most once, with everything that is known after the batch:

    the watermark has just reached its end       final
    it was final, and new rows changed it        correction, with the old values, if any
    it is open, and has new rows                 preliminary, if that is wanted, and the last one
                                                 is old enough

If late rows correct results, a window is final when the watermark reaches its end, and is kept for
the allowed lateness after that; otherwise it is final the allowed lateness after that.

A row of a window that is no longer kept is emitted as late, without results. This operator decides
which rows are late, except where late rows are diverted before it. Even then there can be some: the
state does not have windows that were removed before `allowed_lateness` was made longer.

The age of a preliminary result is measured by `_now`, the time of the batch in Spark's log, which
is the same if the batch is repeated. Changes that "every 10 seconds" holds back are emitted with
the next rows of the window, or when it is final. Sums of doubles are added in the order of arrival,
as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from millstream.pipelines.columns import as_column
from millstream.pipelines.lateness import Lateness, split_late
from millstream.pipelines.results import (
    CORRECTION,
    END,
    FINAL,
    KIND,
    LATE,
    OLD,
    PRELIMINARY,
    START,
    with_kind,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec, Table
from millstream.pipelines.state.keys import HASH, Numbers, equal_keys, key_codes
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.emission import NEVER, NOW, due_now
from millstream.pipelines.windows.measures import Measure, check_measures, measured_columns
from millstream.pipelines.windows.parts import Parts
from millstream.pipelines.windows.ranges import aggregate
from millstream.pipelines.windows.spec import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MakeOperator: TypeAlias = Callable[[pa.Schema], Operator]  # of the columns that it takes
_ROWS = "rows"
SHOWN = "_shown_us"  # when a preliminary result came last


class RevisedWindows(Operator):
    """Pure, on columns. Rows have the keys, the window, `_now` and the columns of measures; `time`
    is the column that determined their windows. Preliminary results are emitted at most every
    `every_us`; None: never."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        measures: Sequence[Measure],
        lateness: Lateness,
        label: str,
        time: str = "time",
        *,
        every_us: int | None = None,
    ) -> None:
        self._group = (*keys, START, END)
        self._parts = Parts(schema, measures)
        windows = f"revised windows, {label} by {time}"
        self.identity = f"{windows}, {self._parts.kinds}"
        self.earlier = (f"{windows}, {self._parts.earlier_kinds}",)
        self.title = f"{label} windows with several results"
        self._lateness = lateness
        self._every_us = every_us
        group = [schema.field(name) for name in self._group]
        self.inputs = {_ROWS: InputSpec(schema, self._group)}
        kept = pa.schema([*group, *self._parts.fields, pa.field(SHOWN, pa.int64())])
        self.tables = {_ROWS: StateTableSpec(kept, self._group, END)}
        self.schema_out = pa.schema(
            [
                *group,
                *self._parts.results,
                pa.field(KIND, pa.string()),
                pa.field(OLD, self._parts.results_type),
            ]
        )

    def kept(self) -> Mapping[str, str]:
        return {_ROWS: f"a row for each key and window, {self._lateness.kept_text}"}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        table = state[_ROWS]
        late_us = state.advance("late", watermark_us - self._lateness.allowed_us).now_us
        new, late = split_late(rows[_ROWS], END, late_us)
        after_us, until_us = state.advance("final", watermark_us - self._lateness.final_us)
        results = [with_kind(late.select(self._group), LATE, self.schema_out)]
        if new.num_rows:
            changed = self._sum_up(new)
            results.append(self._change(table, changed, new, after_us, until_us))
            touched = changed
        else:
            touched = new
        results.append(self._close(table, touched, after_us, until_us))
        table.expire(late_us + 1)
        state.wake_at(self._wake_us(table, until_us))
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _change(
        self,
        table: Table,
        changed: pa.RecordBatch,
        new: pa.RecordBatch,
        after_us: int,
        until_us: int,
    ) -> pa.RecordBatch:
        """Add new parts to those that are kept; results of the windows that were touched."""
        old = table.take(changed.select([HASH, *self._group]))
        merged = self._sum_up(concat([changed, old]))
        ends = times_of(merged, END)
        shown = merged.column(SHOWN).to_numpy().copy()
        is_preliminary = due_now(ends > until_us, shown, new, self._every_us)
        is_known = places_in(old, merged, self._group) >= 0
        kinds = np.where(is_known & (ends > after_us), FINAL, CORRECTION).astype(object)
        kinds[ends > until_us] = PRELIMINARY
        table.append(
            merged.set_column(merged.schema.get_field_index(SHOWN), SHOWN, pa.array(shown))
        )
        chosen = np.flatnonzero((ends <= until_us) | is_preliminary)
        return self._results(merged.take(pa.array(chosen)), kinds[chosen], old)

    def _close(
        self, table: Table, touched: pa.RecordBatch, after_us: int, until_us: int
    ) -> pa.RecordBatch:
        """Final results of the windows that had no new rows; the others came with those."""
        due = table.select(after_us + 1, until_us)
        if not due.num_rows:
            return self.nothing
        if touched.num_rows:
            group = [HASH, *self._group]
            codes = key_codes(concat([due.select(group), touched.select(group)]), self._group)
            is_touched = np.isin(codes[: due.num_rows], codes[due.num_rows :])
            due = due.filter(pa.array(~is_touched))
        none = due.slice(0, 0)
        return self._results(due, np.full(due.num_rows, FINAL, object), none)

    def _results(
        self, windows: pa.RecordBatch, kinds: np.ndarray, old: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Rows of the operator; `old` are kept windows, for those that are corrections."""
        values = self._parts.values(windows)
        places = places_in(old, windows, self._group)
        is_correction = kinds == CORRECTION
        had_old = is_correction & (places >= 0)
        taken = old.take(pa.array(np.where(had_old, places, 0), mask=~had_old))
        old_values = self._parts.values(taken)
        result = pa.RecordBatch.from_arrays(
            [
                *(windows.column(name) for name in self._group),
                *values,
                pa.array(kinds, pa.string()),
                pa.StructArray.from_arrays(
                    old_values, fields=self._parts.results, mask=pa.array(~had_old)
                ),
            ],
            schema=self.schema_out,
        )
        everything = np.arange(windows.num_rows)
        is_same = had_old & equal_keys(values, everything, old_values, everything)
        return result.filter(pa.array(~is_same)) if is_same.any() else result

    def _sum_up(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each group; of rows of the input, or of rows with parts."""
        codes = key_codes(rows, self._group)
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        end = np.concatenate([first[1:], [len(ordered)]])
        has_parts = SHOWN in rows.schema.names
        if has_parts:
            arrays = self._parts.of_parts(rows, order, first, end)
            shown = aggregate("max", rows.column(SHOWN).take(pa.array(order)), first, end)
        else:
            arrays = self._parts.of_rows(rows, order, first, end)
            shown = pa.array(np.full(len(first), NEVER))
        one = pa.array(order[first])
        group = [rows.column(name).take(one) for name in (HASH, *self._group)]
        schema = self.tables[_ROWS].page_schema
        return pa.RecordBatch.from_arrays([*group, *arrays, shown], schema=schema)

    def _wake_us(self, table: Table, until_us: int) -> int | None:
        """When the next window is final, or else, when all that is left can be forgotten."""
        pages = table.pages.values()
        waiting = [page.first_us for page in pages if page.last_us > until_us]
        if waiting:
            return max(min(waiting), until_us + 1) + self._lateness.final_us
        if pages:
            return max(page.last_us for page in pages) + self._lateness.allowed_us
        return None


def places_in(old: pa.RecordBatch, rows: pa.RecordBatch, names: tuple[str, ...]) -> Numbers:
    """Where the row of the same hash and names is in `old`, for each row; -1 if there is none."""
    if not old.num_rows or not rows.num_rows:
        return np.full(rows.num_rows, -1)
    columns = [HASH, *names]
    codes = key_codes(concat([rows.select(columns), old.select(columns)]), names)
    by_code = np.full(int(codes.max()) + 1, -1)
    by_code[codes[rows.num_rows :]] = np.arange(old.num_rows)
    return by_code[codes[: rows.num_rows]]


def windows_operator(window: WindowSpec, frame: DataFrame) -> tuple[list[Column], MakeOperator]:
    """The columns that the operator takes of rows that are assigned, and how to make it."""
    from pyspark.sql.functions import col, current_timestamp

    keys, time = window.key_names(frame), window.time_name(frame)
    measures, measured = measured_columns(frame, window.addable)
    columns = [
        *(as_column(it).alias(name) for it, name in zip(window.keys, keys, strict=True)),
        *(col(name).alias(name, metadata={}) for name in (START, END)),
        current_timestamp().alias(NOW),
        *measured,
    ]

    def make(schema: pa.Schema) -> Operator:
        check_measures(measures, schema)
        return RevisedWindows(
            schema,
            keys,
            measures,
            window.lateness,
            window.kind.label,
            time,
            every_us=window.every_us,
        )

    return columns, make
