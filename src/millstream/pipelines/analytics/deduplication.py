"""Deduplication: each event once, within a horizon.

    orders.transform(deduplicate, "1 hour", key="order_id", time="at")

A row passes, at once, unless one with its key has passed whose time is at most `horizon` before or
after its own. Of rows in the same batch the earliest passes, and of those at the same time always
the same one, so a replay passes the same rows. Duplicates are counted in the query's progress, as
`observedMetrics["duplicates.1 hour"].dropped`, or, with `count_as="sent"`, as `sent.duplicates`;
those that Spark removes are in its own metrics.

Spark's `dropDuplicatesWithinWatermark` is used if it is sufficient, that is, if

    the horizon is the delay of the watermark        it forgets a key that long after its time
    keys are never used again (`reused=False`)       it also removes rows after the horizon, as long
                                                     as it has not forgotten their key
    duplicates are equal                             it does not define which one passes
    late rows are dropped, and the frame has         so that we count late rows
    the column `_watermark`

Otherwise it is bucketed state: the key and time of each row that passed, as long as a row that is
on time can be its duplicate: `horizon + allowed_lateness` behind the watermark. `how="native"` or
`"state"` chooses one of the two. A batch always uses state, and has no late rows.

A row is late if `time + allowed_lateness` is at or behind the watermark: whether it is a duplicate
is no longer known. It is dropped and counted, or diverted: rows then have `_kind`, "final" or
"late", and `_lateness` in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import lateness_of
from millstream.pipelines.columns import (
    WATERMARK_COLUMN,
    as_column,
    check_choice,
    check_lateness,
    check_time,
    check_watermark,
    name_columns,
    watermark_delay_ms,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.hidden import show_watermark
from millstream.pipelines.joins.matching import Mask, sort_versions
from millstream.pipelines.lateness import DropOrDivert, Lateness, split_late
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import (
    DUPLICATE,
    FINAL,
    KIND_FIELD,
    LATE,
    LATENESS_FIELD,
    check_no_kind,
    drop_late,
    keep_results,
    with_kind,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, distinct, key_codes
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.ranges import sort_rows, window_bounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["auto", "native", "state"]
_EVENTS = "events"
_SEEN = "seen"


class Deduplication(Operator):
    """The operator: pure, on columns."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        time: str,
        horizon_us: int,
        allowed_lateness_us: int,
    ) -> None:
        self.identity = f"deduplication within {horizon_us} us"
        self.inputs = {_EVENTS: InputSpec(schema, tuple(keys))}
        self._names = list(dict.fromkeys([*keys, time]))
        seen = pa.schema([schema.field(name) for name in self._names])
        self.tables = {_SEEN: StateTableSpec(seen, tuple(keys), time)}
        self.schema_out = pa.schema([*schema, KIND_FIELD, LATENESS_FIELD])
        self._keys = tuple(keys)
        self._time = time
        self._horizon_us = horizon_us
        self._allowed_us = allowed_lateness_us

    def kept(self) -> Mapping[str, str]:
        kept = duration_text(self._horizon_us + self._allowed_us)
        return {_SEEN: f"until they are {kept} behind the watermark"}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        late_us = state.advance("late", watermark_us - self._allowed_us).now_us
        on_time, late = split_late(rows[_EVENTS], self._time, late_us)
        passes = self._passes(state, on_time)
        passed = on_time.filter(pa.array(passes))
        seen = state[_SEEN]
        seen.append(passed.select([HASH, *self._names]))
        self._forget(state, watermark_us)
        return concat(
            [
                self.nothing,
                with_kind(passed, FINAL, self.schema_out),
                with_kind(on_time.filter(pa.array(~passes)), DUPLICATE, self.schema_out),
                with_kind(late, LATE, self.schema_out, self._time, watermark_us),
            ]
        )

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        self._forget(state, watermark_us)
        return self.nothing

    def _forget(self, state: BucketState, watermark_us: int) -> None:
        """What no row that is on time can be a copy of; and wake when all that is left can go."""
        kept_us = self._horizon_us + self._allowed_us
        state[_SEEN].expire(watermark_us - kept_us + 1)
        pages = state[_SEEN].pages.values()
        state.wake_at(max(page.last_us for page in pages) + kept_us if pages else None)

    def _passes(self, state: BucketState, rows: pa.RecordBatch) -> Mask:
        """Which of these rows are the first of their kind."""
        if not rows.num_rows:
            return np.zeros(0, np.bool_)
        times = times_of(rows, self._time)
        reach = int(times.min()) - self._horizon_us, int(times.max()) + self._horizon_us
        known = state[_SEEN].select(*reach, distinct(rows.column(HASH).to_numpy()))
        both = concat([known, rows.select([HASH, *self._names])])
        codes = key_codes(both, self._keys)
        all_times = times_of(both, self._time)
        is_known = np.arange(both.num_rows) < known.num_rows
        is_free = ~self._is_near_known(codes, all_times, is_known)[known.num_rows :]
        free = rows.filter(pa.array(is_free))
        free_codes = codes[known.num_rows :][is_free]
        order = sort_versions(free, free_codes, (self._time,))
        chosen = first_in_time(
            free_codes[order], times_of(free, self._time)[order], self._horizon_us
        )
        passes = np.zeros(rows.num_rows, np.bool_)
        passes[np.flatnonzero(is_free)[order[chosen]]] = True
        return passes

    def _is_near_known(self, codes: Numbers, times: Numbers, is_known: Mask) -> Mask:
        """For each row, whether a known one of its key is near in time."""
        if not is_known.any():
            return np.zeros(len(codes), np.bool_)
        order = sort_rows(codes, times)
        codes, times, marks = codes[order], times[order], is_known[order]
        places = np.arange(len(codes))
        before = np.maximum.accumulate(np.where(marks, places, -1))
        after = np.minimum.accumulate(np.where(marks, places, len(codes))[::-1])[::-1]
        near = np.zeros(len(codes), np.bool_)
        for at, has_one in ((before, before >= 0), (after, after < len(codes))):
            other = np.where(has_one, at, 0)
            distance = np.abs(times - times[other])
            near |= has_one & (codes[other] == codes) & (distance <= self._horizon_us)
        found = np.empty(len(codes), np.bool_)
        found[order] = near
        return found


def first_in_time(codes: Numbers, times: Numbers, horizon_us: int) -> Numbers:
    """Of rows sorted by code and time, those that pass: of each code the first, then the first that
    is further away than `horizon_us`, and so on. Each leads to the next one; they are followed in
    strides of 1, 2, 4, ..., for all codes at once."""
    count = len(codes)
    if not count:
        return np.zeros(0, np.int64)
    # Windows that reach back, on time that runs backwards, reach ahead.
    first, _ = window_bounds(codes[::-1], -times[::-1], horizon_us)
    leap = np.concatenate([count - first[::-1], [count]])
    passes = np.zeros(count + 1, np.bool_)
    passes[:count] = np.concatenate([[True], codes[1:] != codes[:-1]])
    while True:
        reached = leap[np.flatnonzero(passes)]
        if passes[reached].all():
            break
        passes[reached] = True
        leap = leap[leap]
        passes[count] = True  # the end, where all of them lead to
    return np.flatnonzero(passes[:count])


def deduplicate(
    frame: DataFrame,
    horizon: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column],
    reused: bool = False,
    how: How = "auto",
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    buckets: int = 16,
    count_as: str | None = None,
) -> DataFrame:
    """The rows without copies; see the head of this module. Raises `ConfigError`.

    `reused`: whether a key may come again, as another event, after the horizon.
    """
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    check_choice("how", how, How)
    horizon_us = duration_us(horizon, "horizon")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "deduplication", horizon_us)
    check_no_kind(frame)
    columns = [name for name in frame.columns if name != WATERMARK_COLUMN]
    frame = show_watermark(frame)
    frame, key_names, time_name = name_columns(frame, key, time)
    check_time(frame, time_name, zoneless_allowed=True)
    check_watermark(frame, time_name, "keys would be kept forever")
    check_lateness(frame, time_name, lateness.allowed_us)
    _check_horizon(frame, time_name, horizon_us)
    check_not_aggregated(frame)
    obstacle = _obstacle(frame, time_name, horizon_us, reused, lateness)
    if how == "native" and obstacle:
        raise ConfigError(f"Spark's own deduplication does not do here: {obstacle}")
    if not obstacle and how != "state":
        return _native(frame, key_names, time_name, lateness).select(*map(as_column, columns))
    frame = frame.drop(WATERMARK_COLUMN)
    operator = Deduplication(
        arrow_schema(frame.schema), key_names, time_name, horizon_us, lateness.allowed_us
    )
    found = run_operator(operator, {_EVENTS: frame}, buckets)
    copies = f"{count_as}.duplicates" if count_as else f"duplicates.{duration_text(horizon_us)}"
    return keep_results(found, columns, lateness, copies)


def _check_horizon(frame: DataFrame, time: str, horizon_us: int) -> None:
    delay_ms = watermark_delay_ms(frame, time) if frame.isStreaming else None
    if delay_ms is not None and horizon_us < delay_ms * 1000:
        delay = duration_text(delay_ms * 1000)
        raise ConfigError(
            f"horizon {duration_text(horizon_us)!r} is shorter than the watermark's delay of "
            f"{delay}: a copy that has a time of its own may be that much apart, and would pass. "
            f'Make it {delay} at least, or shorten the delay in withWatermark("{time}", ...)'
        )


def _obstacle(
    frame: DataFrame, time: str, horizon_us: int, reused: bool, lateness: Lateness
) -> str | None:
    """Why Spark's own operator does not suffice; None if it does."""
    if not frame.isStreaming:
        return "it is for streams"
    delay_ms = watermark_delay_ms(frame, time) or 0
    if horizon_us != delay_ms * 1000:
        return f"its horizon is the watermark's delay, {duration_text(delay_ms * 1000)}"
    if reused:
        return "keys are reused, and it may leave out what comes after the horizon"
    if lateness.stragglers != "drop" or lateness.allowed_us:
        return "it drops late rows, and waits for none"
    if WATERMARK_COLUMN not in frame.columns:
        return f"the column {WATERMARK_COLUMN}, needed to find late rows, is missing"
    return None


def _native(frame: DataFrame, keys: Sequence[str], time: str, lateness: Lateness) -> DataFrame:
    from millstream.pipelines.times.lateness import is_late

    late = is_late(frame, as_column(time), as_column(time))
    return drop_late(frame, late, lateness).dropDuplicatesWithinWatermark(list(keys))
