"""The operator of sliding windows: for each event, aggregates of the interval before it. Exact.

An event's window holds the events of its key from `time - interval` to `time`, both included, and
those with the same time. With `preceding` it is what came before the event, without those at its
own time. Events are kept for `allowed_lateness + interval` behind the watermark.

per_event.py describes for users when results are emitted, and what happens to late events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millstream.pipelines.durations import duration_text
from millstream.pipelines.lateness import Lateness, seconds_behind, split_late
from millstream.pipelines.results import (
    ARRIVAL,
    CORRECTION,
    FINAL,
    KIND,
    LATE,
    LATENESS,
    OLD,
    PRELIMINARY,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec, Table
from millstream.pipelines.state.bucket import END_OF_TIME
from millstream.pipelines.state.keys import (
    HASH,
    HASH_FIELD,
    Numbers,
    distinct,
    equal_keys,
    key_codes,
)
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.emission import NEVER, NOW, Emit
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.ranges import (
    Mask,
    aggregate,
    narrow,
    sort_rows,
    window_bounds,
)

_KINDS = (None, FINAL, PRELIMINARY, CORRECTION, ARRIVAL)
_NOTHING, _FINAL, _PRELIMINARY, _CORRECTION, _ARRIVAL = range(5)  # places in it
EVENTS = "events"
_SHOWN = "shown"


class SlidingWindow(Operator):
    """The operator: pure, on columns. `carried` are the input's columns that come out again."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        time: str,
        interval_us: int,
        measures: Sequence[Measure],
        lateness: Lateness,
        carried: Sequence[str],
        *,
        emit: Emit = Emit("final"),  # noqa: B008 - a tuple
        preceding: bool = False,
    ) -> None:
        self.identity = f"sliding window of {interval_us} us"
        self.settles = "on arrival" if emit.is_once else "when final"
        self._preceding = preceding
        self.title = f"sliding window of {duration_text(interval_us)}"
        self.inputs = {EVENTS: InputSpec(schema, tuple(keys))}
        used = [NOW, *(it.column for it in measures)]
        earlier = [(it.column, it.earlier) for it in measures if it.column and it.earlier]
        self.tables = {
            EVENTS: StateTableSpec.carrying(schema, tuple(keys), time, used=used, earlier=earlier)
        }
        if emit.emission == "every":
            shown = pa.schema([pa.field(_SHOWN, schema.field(NOW).type)])
            self.tables[_SHOWN] = StateTableSpec(shown, (), _SHOWN)
        self._keys = tuple(keys)
        self._time = time
        self._interval_us = interval_us
        self._measures = tuple(measures)
        self._lateness = lateness
        self._emit = emit
        # Whether new rows are evaluated when they arrive, and not only when they are final.
        self._sees_changes = lateness.corrects or emit.emission != "final"
        self._kept_us = lateness.allowed_us + interval_us
        self._carried = tuple(carried)
        results = [pa.field(it.name, it.type_in(schema)) for it in measures]
        self._old_type = pa.struct(results)
        self.schema_out = pa.schema(
            [
                *(schema.field(name) for name in carried),
                *results,
                pa.field(KIND, pa.string()),
                pa.field(OLD, self._old_type),
                pa.field(LATENESS, pa.float64()),
            ]
        )

    def kept(self) -> Mapping[str, str]:
        kept = {EVENTS: f"until they are {duration_text(self._kept_us)} behind the watermark"}
        return kept | ({_SHOWN: "one moment"} if _SHOWN in self.tables else {})

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        due = self._due(state, watermark_us)
        late_us = watermark_us - self._lateness.allowed_us
        if not self._lateness.corrects:
            late_us = due.until_us  # a final result does not change
        late_us = state.advance("late", late_us).now_us
        on_time, late = split_late(rows[EVENTS], self._time, late_us)
        results = [self.nothing, *self._finish(state, on_time, due, watermark_us)]
        if late.num_rows:
            results.append(self._late_rows(late, watermark_us))
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        none = self.no_rows()[EVENTS]
        due = self._due(state, watermark_us)
        return concat([self.nothing, *self._finish(state, none, due, watermark_us)])

    def _due(self, state: BucketState, watermark_us: int) -> Due:
        return Due(*state.advance("final", watermark_us - self._lateness.final_us))

    def _finish(
        self, state: BucketState, new: pa.RecordBatch, due: Due, watermark_us: int
    ) -> Iterator[pa.RecordBatch]:
        """Results of rows that became final, and of what the new rows change."""
        events = state[EVENTS]
        since_us = self._last_shown(state, new)
        old = self._rows_in_reach(events, new, due, since_us)
        events.append(new)
        if old is not None:
            seen = new if self._sees_changes else new.slice(0, 0)
            yield self._results(concat([old, seen]), old.num_rows, due, since_us)
        events.expire(watermark_us - self._kept_us + 1)
        if _SHOWN in self.tables and not events.pages:
            state[_SHOWN].expire(END_OF_TIME)
        state.wake_at(self._wake_us(events, due))

    def _last_shown(self, state: BucketState, new: pa.RecordBatch) -> int | None:
        """Where results come every so often, and are due: when they came last. Notes it."""
        if _SHOWN not in self.tables or not new.num_rows:
            return None
        shown = state[_SHOWN]
        last_us = max((page.last_us for page in shown.pages.values()), default=NEVER)
        now_us = int(times_of(new, NOW).max())
        if now_us - last_us < self._emit.every_us:
            return None
        columns = {HASH: pa.array([0], HASH_FIELD.type), _SHOWN: new.column(NOW).slice(0, 1)}
        shown.append(pa.RecordBatch.from_pydict(columns, schema=shown.spec.page_schema))
        shown.expire(now_us)
        return last_us

    def _rows_in_reach(
        self, events: Table, new: pa.RecordBatch, due: Due, since_us: int | None
    ) -> pa.RecordBatch | None:
        """Rows kept so far of all windows that are to be looked at; None if there is no such."""
        if self._emit.is_once:
            return self._rows_before(events, new)
        focus = events.select(due.after_us + 1, due.until_us)
        changed = new
        if since_us is not None:
            reaching = events.select(due.until_us - self._interval_us)
            came = reaching.filter(pa.array(times_of(reaching, NOW) > since_us))
            changed = concat([new, came])
        last_us = due.until_us
        if self._sees_changes and changed.num_rows:
            last_us = int(times_of(changed, self._time).max()) + self._interval_us
            last_us = max(last_us, due.until_us)
            focus = concat([focus, changed])
        if not focus.num_rows:
            return None
        first_us = int(times_of(focus, self._time).min()) - self._interval_us
        hashes = distinct(focus.column(HASH).to_numpy())
        return events.select(first_us, last_us, hashes)

    def _rows_before(self, events: Table, new: pa.RecordBatch) -> pa.RecordBatch | None:
        """Rows kept so far that the windows of new rows reach back to."""
        if not new.num_rows:
            return None
        times = times_of(new, self._time)
        first_us, last_us = int(times.min()) - self._interval_us, int(times.max())
        return events.select(first_us, last_us, distinct(new.column(HASH).to_numpy()))

    def _results(
        self, rows: pa.RecordBatch, old_count: int, due: Due, since_us: int | None
    ) -> pa.RecordBatch:
        """Of old rows and new ones after them, whatever is to come out."""
        codes = key_codes(rows, self._keys)
        times = times_of(rows, self._time)
        order = sort_rows(codes, times)
        times = times[order]
        is_new = order >= old_count
        windows = Windows(
            *window_bounds(codes[order], times, self._interval_us, preceding=self._preceding)
        )
        kinds = self._kinds(times, is_new, windows, due)
        if since_us is not None:
            is_touched = _is_touched(windows, times_of(rows, NOW)[order] > since_us)
            kinds[(kinds == _NOTHING) & (times > due.until_us) & is_touched] = _PRELIMINARY
        chosen = np.flatnonzero(kinds)
        windows = Windows(windows.first[chosen], windows.end[chosen])
        columns = self._measure(rows, order, windows)
        had_old = (kinds[chosen] == _CORRECTION) & ~is_new[chosen]
        old_columns = self._measure_before(rows, order, windows, is_new, had_old)
        names = pa.array(_KINDS).take(pa.array(kinds[chosen]))
        old = pa.StructArray.from_arrays(
            old_columns, fields=list(self._old_type), mask=pa.array(~had_old)
        )
        taken = pa.array(order[chosen])
        carried = [rows.column(name).take(taken) for name in self._carried]
        lateness = pa.nulls(len(chosen), pa.float64())
        result = pa.RecordBatch.from_arrays(
            [*carried, *columns, names, old, lateness], schema=self.schema_out
        )
        if not had_old.any():
            return result
        everything = np.arange(len(chosen))
        is_same = had_old & equal_keys(columns, everything, old_columns, everything)
        return result.filter(pa.array(~is_same))

    def _kinds(self, times: Numbers, is_new: Mask, windows: Windows, due: Due) -> Numbers:
        """What comes out of each row, as a place in `_KINDS`."""
        if self._emit.is_once:
            return np.where(is_new, _ARRIVAL, _NOTHING)
        is_final = times <= due.until_us
        kinds = np.where(is_final & (times > due.after_us) & ~is_new, _FINAL, _NOTHING)
        if not self._sees_changes:
            return kinds
        is_touched = _is_touched(windows, is_new)
        if self._emit.emission == "change":
            kinds[~is_final & is_touched] = _PRELIMINARY
        kinds[is_touched & (times <= np.where(is_new, due.until_us, due.after_us))] = _CORRECTION
        return kinds

    def _measure(self, rows: pa.RecordBatch, order: Numbers, windows: Windows) -> list[pa.Array]:
        """Every aggregate of these windows, which are ranges of the rows in this order."""
        taken = pa.array(order)
        sources = {it.column or HASH for it in self._measures}
        columns = {name: rows.column(name).take(taken) for name in sources}
        return [
            aggregate(it.kind, columns[it.column or HASH], *windows, it.fraction)
            for it in self._measures
        ]

    def _measure_before(
        self, rows: pa.RecordBatch, order: Numbers, windows: Windows, is_new: Mask, had_old: Mask
    ) -> list[pa.Array]:
        """The same without the new rows, where something was final before them."""
        if not had_old.any():
            return [pa.nulls(len(had_old), field.type) for field in self._old_type]
        before = Windows(*narrow(~is_new, windows.first, windows.end))
        return self._measure(rows, order[~is_new], before)

    def _late_rows(self, rows: pa.RecordBatch, watermark_us: int) -> pa.RecordBatch:
        count = rows.num_rows
        return pa.RecordBatch.from_arrays(
            [
                *(rows.column(name) for name in self._carried),
                *(pa.nulls(count, field.type) for field in self._old_type),
                pa.repeat(pa.scalar(LATE), count),
                pa.nulls(count, self._old_type),
                seconds_behind(rows, self._time, watermark_us),
            ],
            schema=self.schema_out,
        )

    def _wake_us(self, events: Table, due: Due) -> int | None:
        """When the next row may be final, or else, when all that is left can be forgotten."""
        pages = events.pages.values()
        waiting = [page.first_us for page in pages if page.last_us > due.until_us]
        if waiting and not self._emit.is_once:
            return max(min(waiting), due.until_us + 1) + self._lateness.final_us
        if pages:
            return max(page.last_us for page in pages) + self._kept_us
        return None


class Due(NamedTuple):
    """Rows with `after_us < time <= until_us` become final now."""

    after_us: int
    until_us: int


class Windows(NamedTuple):
    """Of each row, the rows in its window, as a range of the sorted rows."""

    first: Numbers
    end: Numbers


def _is_touched(windows: Windows, came: Mask) -> Mask:
    """Which rows came, or have one that came in their window, where they need not be themselves."""
    first, end = narrow(came, *windows)
    touched: Mask = (end > first) | came
    return touched
