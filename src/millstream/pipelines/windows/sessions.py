"""Sessions with several results: preliminary, final and corrected ones.

Spark emits a session once, when it is final. Here sessions are kept in bucketed state, one row per
key and session with the parts of its aggregates (parts.py). Each row is a session as long as the
gap, and sessions of a key that touch are merged. A batch emits at most one row per key and start of
a session:

    preliminary   it has new rows, and is open (if that is wanted)
    final         the watermark has reached its end
    correction    it has new rows after it was final: it grew, was merged with others, or is new;
                  `_old` has the values before, if it was emitted with this start
    withdrawn     it was emitted, and is now part of another session, because of a row before its
                  start or between the two. The other session is emitted as well. It has no
                  aggregates; `_old` has them if it was final

So a table keyed by the key and `window_start`, in which withdrawn rows are deletes, contains the
current sessions. If late rows correct results, a session is kept as long as a row that is on time
can touch it; otherwise until it is final. Rows of sessions that are no longer kept are emitted as
late rows, as in revisions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.pipelines.columns import as_column
from millstream.pipelines.durations import duration_text
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
    WITHDRAWN,
    with_kind,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec, Table
from millstream.pipelines.state.keys import HASH, Numbers, equal_keys, key_codes
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.emission import NEVER, NOW, due_now
from millstream.pipelines.windows.kinds import Session
from millstream.pipelines.windows.measures import Measure, check_measures, measured_columns
from millstream.pipelines.windows.parts import Parts
from millstream.pipelines.windows.ranges import Mask, sort_rows
from millstream.pipelines.windows.revisions import SHOWN, MakeOperator, places_in
from millstream.pipelines.windows.spec import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIME = "_time"
_ROWS = "rows"
_SETTLED = "_settled"  # it was final, and may have grown since; a name in stored state


class Groups(NamedTuple):
    """Sessions of a key that touch, as ranges of the sessions in `order`."""

    order: Numbers
    first: Numbers
    end: Numbers

    @property
    def of_each(self) -> Numbers:
        """The group of each session, in `order`."""
        return np.repeat(np.arange(len(self.first)), self.end - self.first)

    def any(self, is_true: Mask) -> Mask:
        """Of flags of sessions: whether a group has one."""
        found: Mask = np.add.reduceat(is_true[self.order].astype(np.int64), self.first) > 0
        return found


class RevisedSessions(Operator):
    """Pure, on columns. Rows have the keys, `_time`, `_now` and the columns of measures; `time` is
    the original name of `_time`."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        measures: Sequence[Measure],
        gap_us: int,
        lateness: Lateness,
        time: str = "time",
        *,
        every_us: int | None = None,
    ) -> None:
        self._parts = Parts(schema, measures)
        sessions = f"revised sessions of {gap_us} us by {time}"
        corrected = ", corrected" if lateness.corrects else ""
        self.identity = f"{sessions}, {self._parts.kinds}{corrected}"
        self.earlier = (f"{sessions}, {self._parts.earlier_kinds}{corrected}",)
        self.title = f"sessions of {duration_text(gap_us)} with several results"
        self._keys = tuple(keys)
        self._gap_us = gap_us
        self._lateness = lateness
        self._every_us = every_us
        group = [
            *(schema.field(name) for name in keys),
            *(pa.field(name, schema.field(TIME).type) for name in (START, END)),
        ]
        flags = [pa.field(SHOWN, pa.int64()), pa.field(_SETTLED, pa.bool_())]
        self.inputs = {_ROWS: InputSpec(schema, self._keys)}
        kept = pa.schema([*group, *self._parts.fields, *flags])
        self.tables = {_ROWS: StateTableSpec(kept, self._keys, END)}
        self.schema_out = pa.schema(
            [
                *group,
                *self._parts.results,
                pa.field(KIND, pa.string()),
                pa.field(OLD, self._parts.results_type),
            ]
        )

    def kept(self) -> Mapping[str, str]:
        return {_ROWS: f"a row for each key and session, {self._lateness.kept_text}"}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        table = state[_ROWS]
        late_us = state.advance("late", watermark_us - self._lateness.allowed_us).now_us
        new, late = split_late(rows[_ROWS], TIME, late_us - self._gap_us)
        after_us, until_us = state.advance("final", watermark_us - self._lateness.final_us)
        results = [with_kind(late.select(self._keys), LATE, self.schema_out)]
        if new.num_rows:
            old = self._mark_final(table.take(new.select([HASH, *self._keys])), after_us)
            results += self._merge(table, old, new, after_us, until_us)
        results.append(self._close(table, new, after_us, until_us))
        # Sessions that can still be corrected stay: a row after `late_us` can extend them.
        table.expire(late_us - self._gap_us + 1 if self._lateness.corrects else until_us + 1)
        state.wake_at(self._wake_us(table, until_us))
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _mark_final(self, sessions: pa.RecordBatch, after_us: int) -> pa.RecordBatch:
        """Mark those that were final."""
        was_final = _flags(sessions) | (times_of(sessions, END) <= after_us)
        place = sessions.schema.get_field_index(_SETTLED)
        return sessions.set_column(place, _SETTLED, pa.array(was_final))

    def _merge(
        self,
        table: Table,
        old: pa.RecordBatch,
        new: pa.RecordBatch,
        after_us: int,
        until_us: int,
    ) -> list[pa.RecordBatch]:
        """Update the sessions of the keys that have new rows; returns their results."""
        known = concat([old, self._sessions_of(new)])
        is_new = np.arange(known.num_rows) >= old.num_rows
        groups = self._touching(known)
        merged = self._sum_up(known, groups)
        starts, ends = times_of(merged, START), times_of(merged, END)
        was_out = ~is_new & (_flags(known) | (known.column(SHOWN).to_numpy() != NEVER))
        own_start = np.empty(known.num_rows, np.int64)
        own_start[groups.order] = starts[groups.of_each]
        is_gone = was_out & (times_of(known, START) != own_start)
        has_new, was_there = groups.any(is_new), groups.any(~is_new)
        was_final = _flags(merged)
        shown = merged.column(SHOWN).to_numpy().copy()
        shown_now = due_now(has_new & (ends > until_us) & ~was_final, shown, new, self._every_us)
        # A session that replaces a withdrawn one is emitted with it.
        swallows = groups.any(is_gone) & (ends > until_us) & ~was_final
        shown[swallows] = int(times_of(new, NOW).max())
        kinds = np.full(len(starts), None, object)
        kinds[shown_now | swallows] = PRELIMINARY
        kinds[~was_final & (ends <= until_us)] = FINAL
        kinds[has_new & (was_final | ((ends <= until_us) & ~(was_there & (ends > after_us))))] = (
            CORRECTION
        )
        place = merged.schema.get_field_index(SHOWN)
        table.append(merged.set_column(place, SHOWN, pa.array(shown)))
        chosen = np.flatnonzero(kinds != None)  # noqa: E711 - element by element
        return [
            self._withdrawn(known.filter(pa.array(is_gone))),
            self._results(merged.take(pa.array(chosen)), kinds[chosen], old),
        ]

    def _sessions_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A session for each row."""
        each = np.arange(rows.num_rows)
        times = rows.column(TIME)
        ends = pa.array(times_of(rows, TIME) + self._gap_us).cast(times.type)
        arrays = [
            *(rows.column(name) for name in (HASH, *self._keys)),
            times,
            ends,
            *self._parts.of_rows(rows, each, each, each + 1),
            pa.array(np.full(rows.num_rows, NEVER)),
            pa.array(np.zeros(rows.num_rows, np.bool_)),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.tables[_ROWS].page_schema)

    def _touching(self, sessions: pa.RecordBatch) -> Groups:
        codes = key_codes(sessions, self._keys)
        order = sort_rows(codes, times_of(sessions, START))
        codes = codes[order]
        starts, ends = times_of(sessions, START)[order], times_of(sessions, END)[order]
        # The last end of the sessions of the key so far: ends by rank, so that those of a key are
        # after those of the keys before it.
        distinct, ranks = np.unique(ends, return_inverse=True)
        so_far = np.maximum.accumulate(codes * len(distinct) + ranks)
        last_ends = distinct[so_far - codes * len(distinct)]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > last_ends[:-1])
        first = np.flatnonzero(is_first)
        return Groups(order, first, np.concatenate([first[1:], [len(order)]]))

    def _sum_up(self, sessions: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
        """One session for each group."""
        order, first, _ = groups
        one = pa.array(order[first])
        kind = self.tables[_ROWS].schema.field(END).type
        last_us = np.maximum.reduceat(times_of(sessions, END)[order], first)
        shown = np.maximum.reduceat(sessions.column(SHOWN).to_numpy()[order], first)
        arrays = [
            *(sessions.column(name).take(one) for name in (HASH, *self._keys, START)),
            pa.array(last_us).cast(kind),
            *self._parts.of_parts(sessions, order, first, groups.end),
            pa.array(shown),
            pa.array(groups.any(_flags(sessions))),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.tables[_ROWS].page_schema)

    def _close(
        self, table: Table, touched: pa.RecordBatch, after_us: int, until_us: int
    ) -> pa.RecordBatch:
        """Final results of keys without new rows; `_merge` returns those of the others."""
        due = table.select(after_us + 1, until_us)
        if due.num_rows:
            due = due.filter(pa.array(~_flags(due)))
        if due.num_rows and touched.num_rows:
            names = [HASH, *self._keys]
            codes = key_codes(concat([due.select(names), touched.select(names)]), self._keys)
            due = due.filter(pa.array(~np.isin(codes[: due.num_rows], codes[due.num_rows :])))
        return self._results(due, np.full(due.num_rows, FINAL, object), due.slice(0, 0))

    def _results(
        self, sessions: pa.RecordBatch, kinds: npt.NDArray[Any], old: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Rows of the operator; `old` are the sessions before the batch."""
        values = self._parts.values(sessions)
        places = places_in(old, sessions, (*self._keys, START))
        had_old = (kinds == CORRECTION) & (places >= 0)
        had_old[had_old] = _flags(old)[places[had_old]]
        before = old.take(pa.array(np.where(had_old, places, 0), mask=~had_old))
        old_values = self._parts.values(before)
        result = self._rows(sessions, values, pa.array(kinds, pa.string()), old_values, had_old)
        each = np.arange(sessions.num_rows)
        is_same = had_old & equal_keys(
            [*values, sessions.column(END)], each, [*old_values, before.column(END)], each
        )
        return result.filter(pa.array(~is_same)) if is_same.any() else result

    def _withdrawn(self, sessions: pa.RecordBatch) -> pa.RecordBatch:
        nulls = [pa.nulls(sessions.num_rows, it.type) for it in self._parts.results]
        kinds = pa.repeat(pa.scalar(WITHDRAWN), sessions.num_rows)
        return self._rows(sessions, nulls, kinds, self._parts.values(sessions), _flags(sessions))

    def _rows(
        self,
        sessions: pa.RecordBatch,
        values: list[pa.Array],
        kinds: pa.Array,
        old_values: list[pa.Array],
        had_old: Mask,
    ) -> pa.RecordBatch:
        old = pa.StructArray.from_arrays(
            old_values, fields=self._parts.results, mask=pa.array(~had_old)
        )
        group = [sessions.column(name) for name in (*self._keys, START, END)]
        return pa.RecordBatch.from_arrays([*group, *values, kinds, old], schema=self.schema_out)

    def _wake_us(self, table: Table, until_us: int) -> int | None:
        """When the next session is final, or otherwise, when all that is left can be removed."""
        pages = table.pages.values()
        waiting = [page.first_us for page in pages if page.last_us > until_us]
        if waiting:
            return max(min(waiting), until_us + 1) + self._lateness.final_us
        if pages:
            last_us = max(page.last_us for page in pages)
            return last_us + self._gap_us + self._lateness.allowed_us
        return None


def _flags(sessions: pa.RecordBatch) -> Mask:
    found: Mask = sessions.column(_SETTLED).to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


def sessions_operator(window: WindowSpec, frame: DataFrame) -> tuple[list[Column], MakeOperator]:
    """The columns that the operator reads, and a function that creates it."""
    from pyspark.sql.functions import current_timestamp

    assert isinstance(window.kind, Session)
    gap_us = window.kind.gap_us
    keys, time = window.key_names(frame), window.time_name(frame)
    measures, measured = measured_columns(frame, window.addable)
    columns = [
        *(as_column(it).alias(name) for it, name in zip(window.keys, keys, strict=True)),
        as_column(window.time).alias(TIME, metadata={}),
        current_timestamp().alias(NOW),
        *measured,
    ]

    def make(schema: pa.Schema) -> Operator:
        check_measures(measures, schema)
        return RevisedSessions(
            schema, keys, measures, gap_us, window.lateness, time, every_us=window.every_us
        )

    return columns, make
