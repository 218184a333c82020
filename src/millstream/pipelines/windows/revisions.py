"""Windows whose results come more than once: early ones, final ones, corrected ones.

Spark's aggregation in update mode tells the new value of a window, not the old one, and never that
it is final. So aggregates of windows are kept in bucketed state, as parts that can be added up (an
average is a sum and a count), a row for each key and window. In each batch a window comes out once
at most, with all that is known after the batch:

    its end is newly behind the watermark        final
    it was before, and new rows changed it       correction, with the values it had, if any
    it is open, and new rows came                preliminary, if they are asked for, and the last
                                                 one is long enough ago

With stragglers to be corrected, "behind" is at the watermark, and windows are kept for the allowed
lateness after; else it is the allowed lateness behind it. Rows come without the late ones.

How long ago is told by `_now`, the time of the batch by Spark's own log, the same when the batch is
repeated. What a pause of "every 10 seconds" held back comes with the window's next rows, or when it
is final. Sums of doubles are added in the order in which they come, as Spark's own are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.state import BucketState, InputSpec, Operator, Table, TableSpec
from millstream.pipelines.state.keys import HASH, Numbers, equal_keys, key_codes
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.aggregates import Aggregate, parse_aggregate
from millstream.pipelines.windows.ranges import aggregate, result_type
from millstream.pipelines.windows.sliding import KIND, OLD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipelines.windows.definition import Window

KINDS = ("count", "sum", "avg", "min", "max")
NOW = "_now"
_ROWS = "rows"
_SHOWN = "_shown_us"  # when a preliminary result came last
_NEVER = -(2**62)
_START, _END = "window_start", "window_end"


class Measure(NamedTuple):
    """An aggregate of a column of the input; without a column, of the rows."""

    name: str
    kind: str
    column: str | None


class Part(NamedTuple):
    """What is kept of an aggregate: a column, how it is made of rows, and how parts are added."""

    name: str
    kind: str
    column: str | None
    adding: str


class Timing(NamedTuple):
    """When results come: final at `settling_us` behind the watermark, changes until `kept_us`."""

    settling_us: int
    kept_us: int
    every_us: int | None  # between preliminary results; None: there are none


class RevisedWindows(Operator):
    """Pure, on columns. Rows have the keys, the window, `_now` and the columns of measures."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        measures: Sequence[Measure],
        timing: Timing,
        label: str,
    ) -> None:
        self.identity = f"revised windows, {label}, {timing}"
        self._group = (*keys, _START, _END)
        self._measures = tuple(measures)
        self._parts = [part for it in measures for part in _parts_of(it)]
        self._timing = timing
        group = [schema.field(name) for name in self._group]
        parts = [
            pa.field(it.name, result_type(it.kind, _type_of(schema, it.column)))
            for it in self._parts
        ]
        results = [
            pa.field(it.name, result_type(it.kind, _type_of(schema, it.column))) for it in measures
        ]
        self._old_type = pa.struct(results)
        self.inputs = {_ROWS: InputSpec(schema, self._group)}
        kept = pa.schema([*group, *parts, pa.field(_SHOWN, pa.int64())])
        self.tables = {_ROWS: TableSpec(kept, self._group, _END)}
        self.schema_out = pa.schema(
            [*group, *results, pa.field(KIND, pa.string()), pa.field(OLD, self._old_type)]
        )

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        table = state[_ROWS]
        new = self._on_time(rows[_ROWS], watermark_us)
        after_us = state.watermark_us - self._timing.settling_us
        until_us = watermark_us - self._timing.settling_us
        results = [self.nothing]
        if new.num_rows:
            changed = self._sum_up(new, [(it, it.kind, it.column) for it in self._parts])
            results.append(self._change(table, changed, new, after_us, until_us))
            touched = changed
        else:
            touched = new
        results.append(self._close(table, touched, after_us, until_us))
        table.expire(watermark_us - self._timing.kept_us + 1)
        state.wake_at(self._wake_us(table, until_us))
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _on_time(self, rows: pa.RecordBatch, watermark_us: int) -> pa.RecordBatch:
        """They are told before; this only makes sure that no forgotten window is begun anew."""
        is_kept = times_of(rows, _END) > watermark_us - self._timing.kept_us
        return rows if is_kept.all() else rows.filter(pa.array(is_kept))

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
        merged = self._sum_up(
            concat([changed, old]), [(it, it.adding, it.name) for it in self._parts]
        )
        ends = times_of(merged, _END)
        shown = merged.column(_SHOWN).to_numpy().copy()
        is_preliminary = self._are_shown(ends > until_us, shown, new)
        is_known = self._places(merged, old) >= 0
        kinds = np.where(is_known & (ends > after_us), "final", "correction").astype(object)
        kinds[ends > until_us] = "preliminary"
        table.append(
            merged.set_column(merged.schema.get_field_index(_SHOWN), _SHOWN, pa.array(shown))
        )
        chosen = np.flatnonzero((ends <= until_us) | is_preliminary)
        return self._results(merged.take(pa.array(chosen)), kinds[chosen], old)

    def _are_shown(self, is_open: np.ndarray, shown: Numbers, new: pa.RecordBatch) -> np.ndarray:
        """Which windows have a preliminary result now; notes it in `shown`."""
        if self._timing.every_us is None:
            return np.zeros(len(is_open), np.bool_)
        now_us = int(times_of(new, NOW).max())
        due: np.ndarray = is_open & (now_us - shown >= self._timing.every_us)
        shown[due] = now_us
        return due

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
        return self._results(due, np.full(due.num_rows, "final", object), none)

    def _results(
        self, windows: pa.RecordBatch, kinds: np.ndarray, old: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Rows of the operator; `old` are kept windows, for those that are corrections."""
        values = self._values(windows)
        places = self._places(windows, old)
        is_correction = kinds == "correction"
        had_old = is_correction & (places >= 0)
        taken = old.take(pa.array(np.where(had_old, places, 0), mask=~had_old))
        old_values = self._values(taken)
        result = pa.RecordBatch.from_arrays(
            [
                *(windows.column(name) for name in self._group),
                *values,
                pa.array(kinds, pa.string()),
                pa.StructArray.from_arrays(
                    old_values, fields=list(self._old_type), mask=pa.array(~had_old)
                ),
            ],
            schema=self.schema_out,
        )
        everything = np.arange(windows.num_rows)
        is_same = had_old & equal_keys(values, everything, old_values, everything)
        return result.filter(pa.array(~is_same)) if is_same.any() else result

    def _places(self, windows: pa.RecordBatch, old: pa.RecordBatch) -> Numbers:
        """Where each window is in `old`; -1 if it is not."""
        places = np.full(windows.num_rows, -1)
        if not old.num_rows or not windows.num_rows:
            return places
        group = [HASH, *self._group]
        codes = key_codes(concat([windows.select(group), old.select(group)]), self._group)
        by_code = np.full(int(codes.max()) + 1, -1)
        by_code[codes[windows.num_rows :]] = np.arange(old.num_rows)
        return by_code[codes[: windows.num_rows]]

    def _sum_up(
        self, rows: pa.RecordBatch, parts: Sequence[tuple[Part, str, str | None]]
    ) -> pa.RecordBatch:
        """One row for each group; of rows of the input, or of parts."""
        codes = key_codes(rows, self._group)
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        end = np.concatenate([first[1:], [len(ordered)]])
        taken = pa.array(order)
        arrays = [
            aggregate(kind, rows.column(column or HASH).take(taken), first, end)
            for _, kind, column in parts
        ]
        one = pa.array(order[first])
        shown = (
            aggregate("max", rows.column(_SHOWN).take(taken), first, end)
            if _SHOWN in rows.schema.names
            else pa.array(np.full(len(first), _NEVER))
        )
        group = [rows.column(name).take(one) for name in (HASH, *self._group)]
        schema = self.tables[_ROWS].page_schema
        return pa.RecordBatch.from_arrays([*group, *arrays, shown], schema=schema)

    def _values(self, windows: pa.RecordBatch) -> list[pa.Array]:
        """The aggregates, of their parts."""
        values = []
        for it, kind in zip(self._measures, self._old_type, strict=True):
            if it.kind == "avg":
                total = windows.column(f"_{it.name}_sum").cast(pa.float64())
                count = windows.column(f"_{it.name}_count")
                divisor = pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64())
                values.append(pc.divide(total, divisor))
            else:
                values.append(windows.column(it.name).cast(kind.type))
        return values

    def _wake_us(self, table: Table, until_us: int) -> int | None:
        """When the next window is final, or else, when all that is left can be forgotten."""
        pages = table.pages.values()
        waiting = [page.first_us for page in pages if page.last_us > until_us]
        if waiting:
            return max(min(waiting), until_us + 1) + self._timing.settling_us
        if pages:
            return max(page.last_us for page in pages) + self._timing.kept_us
        return None


def revised_windows(window: Window, on_time: DataFrame) -> DataFrame:
    """The results of a window on a stream whose rows are assigned and on time."""
    from pyspark.sql.functions import col, current_timestamp, expr

    from millstream.pipelines.columns import as_column
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    keys = window.key_names(on_time)
    columns = [
        *(as_column(it).alias(name) for it, name in zip(window.keys, keys, strict=True)),
        *(col(name).alias(name, metadata={}) for name in (_START, _END)),
        current_timestamp().alias(NOW),
    ]
    measures = []
    for number, (name, given) in enumerate(window.aggregates.items()):
        it = _parse(given, name)
        column = None if it.of is None else f"_measured_{number}"
        measures.append(Measure(name, it.kind, column))
        if it.of is not None:
            of = expr(it.of) if isinstance(it.of, str) else it.of
            columns.append(of.alias(f"_measured_{number}"))
    frame = on_time.select(*columns)
    schema = arrow_schema(frame.schema)
    for measure in measures:
        try:
            result_type(measure.kind, _type_of(schema, measure.column))
        except TypeError as error:
            raise ConfigError(
                f"{measure.name}: there is no {error}; cast it to a number, like double"
            ) from None
    corrects = window.stragglers == "correct"
    settling_us = 0 if corrects else window.allowed_lateness_us
    timing = Timing(settling_us, window.allowed_lateness_us, window.every_us)
    operator = RevisedWindows(schema, keys, measures, timing, window.kind.label)
    result = run_operator(operator, {_ROWS: frame}, window.buckets)
    return result if corrects else result.drop(OLD)


def _parse(given: object, name: str) -> Aggregate:
    if not isinstance(given, str | Aggregate):
        raise ConfigError(
            f"{name}: results that change are kept in parts; write {name} as text, like "
            f'"sum(amount)", or Aggregate("sum", column), one of {", ".join(KINDS)}'
        )
    it = parse_aggregate(given, name)
    if it.kind not in KINDS:
        raise ConfigError(
            f"{name}: there is no {it.kind} of results that change, only {', '.join(KINDS)}; with "
            'emit="final", and stragglers dropped or diverted, there is'
        )
    return it


def _parts_of(measure: Measure) -> list[Part]:
    name, kind, column = measure
    if kind == "avg":
        return [
            Part(f"_{name}_sum", "sum", column, "sum"),
            Part(f"_{name}_count", "count", column, "sum"),
        ]
    return [Part(name, kind, column, "sum" if kind == "count" else kind)]


def _type_of(schema: pa.Schema, column: str | None) -> pa.DataType:
    return pa.int64() if column is None else schema.field(column).type
