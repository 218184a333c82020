"""Exponentially weighted averages per key, and outliers.

    readings.transform(smooth, "celsius", key="sensor", time="at", half_life="10 minutes",
                       threshold=4)

The weight of an event halves with every `half_life` of event time: it is 2^(-age / half_life), so
gaps count. Each row is emitted once: when it arrives, by what is known then (`emit="arrival"`), or
when no row that is on time can precede it (`emit="final"`). It has, in addition to its columns,

    average      of the key's events up to this one, weighted by age
    expected     the average before this event; null for the first
    z            the distance from `expected` in (weighted) standard deviations; null if the values
                 before are all equal
    is_anomaly   whether |z| is greater than `threshold`, or the values before are all equal and
                 this one differs; false until the key has `min_count` events without a long gap

Values that are null or not finite change nothing, and have no average. A key without events for
`forget_after`, by default 32 half-lives, starts from scratch. After more than 4 half-lives without
events, its average continues, but its count of events starts from 0: the events before weigh less
than a sixteenth of what they did, and nothing is an anomaly until there are `min_count` new ones. A
key whose events are always further apart than that has no anomalies: choose a longer half-life.

A row is late if `time + allowed_lateness` is at or behind the watermark. It is dropped and counted,
or diverted: rows then have `_kind`, "arrival", "final" or "late", and `_lateness` in seconds. Final
results wait for the watermark, and are bit for bit independent of how the stream was split into
batches: sums are added event by event, in the order of time (then of content). At arrival, an event
that is older than others of its key has the weight of its age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import (
    check_number,
    check_whole,
    lateness_of,
)
from millstream.pipelines.columns import (
    WATERMARK_COLUMN,
    check_lateness,
    check_time,
    check_watermark,
    name_columns,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.joins.matching import Mask, common_codes, is_last, sort_versions
from millstream.pipelines.lateness import DropOrDivert, split_late
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import (
    ARRIVAL,
    FINAL,
    KIND_FIELD,
    LATE,
    LATENESS_FIELD,
    check_no_kind,
    keep_results,
    with_kind,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, distinct, key_codes
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.emission import parse_emit
from millstream.pipelines.windows.moments import Doubles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AVERAGE, EXPECTED, Z, IS_ANOMALY = "average", "expected", "z", "is_anomaly"
HALF_LIVES_KEPT = 32  # an event that old counts for a four billionth
HALF_LIVES_BACK = 256  # an event that much older than others of its key counts for nothing
HALF_LIVES_COUNTED = 4  # after a longer silence, what was before weighs a sixteenth at most
_EVENTS = "events"
_WAITING = "waiting"
_AVERAGES = "averages"
_VALUE = "_smoothed"
_LAST, _WEIGHT, _MEAN, _SPREAD, _COUNT = "_last", "_weight", "_mean", "_spread", "_count"
_NUMBERS = (_WEIGHT, _MEAN, _SPREAD, _COUNT)
_FEW_KEYS = 32  # with fewer, a loop over events is quicker than one over columns


class Averages(NamedTuple):
    """Of each key: how much all of its events weigh, their mean, the weighted sum of squares of
    their distances from it, and how many they are."""

    weight: Doubles
    mean: Doubles
    spread: Doubles
    events: Doubles

    def copy(self) -> Averages:
        return Averages(*(it.copy() for it in self))


class Smoothing(Operator):
    """The operator: pure, on columns. Rows have a column `_smoothed` of doubles."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        time: str,
        half_life_us: int,
        forget_us: int,
        allowed_lateness_us: int,
        threshold: float,
        min_count: int,
        *,
        at_arrival: bool = False,
    ) -> None:
        self.identity = f"smoothing by {half_life_us} us, forgetting after {forget_us} us"
        self.inputs = {_EVENTS: InputSpec(schema, tuple(keys))}
        numbers = [pa.field(name, pa.float64()) for name in _NUMBERS]
        key_fields = [schema.field(name) for name in keys]
        last = pa.field(_LAST, schema.field(time).type)
        averages = pa.schema([*key_fields, last, *numbers])
        self.tables = {
            _WAITING: StateTableSpec.carrying(schema, tuple(keys), time, used=(_VALUE,)),
            _AVERAGES: StateTableSpec(averages, tuple(keys), _LAST, by_key=True),
        }
        results = [pa.field(name, pa.float64()) for name in (AVERAGE, EXPECTED, Z)]
        carried = [field for field in schema if field.name != _VALUE]
        self.schema_out = pa.schema(
            [*carried, *results, pa.field(IS_ANOMALY, pa.bool_()), KIND_FIELD, LATENESS_FIELD]
        )
        self._keys = tuple(keys)
        self._time = time
        self._half_life_us = half_life_us
        self._forget_us = forget_us
        self._allowed_us = allowed_lateness_us
        self._threshold = threshold
        self._min_count = min_count
        self._at_arrival = at_arrival
        self._kind = ARRIVAL if at_arrival else FINAL

    def kept(self) -> Mapping[str, str]:
        kept = duration_text(self._forget_us + self._allowed_us)
        waiting = "until the watermark is past them"
        if self._allowed_us:
            waiting = f"until they are {duration_text(self._allowed_us)} behind the watermark"
        return {
            _WAITING: waiting,
            _AVERAGES: f"until the last event of their key is {kept} behind the watermark",
        }

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        late_us = state.advance("final", watermark_us - self._allowed_us).now_us
        on_time, late = split_late(rows[_EVENTS], self._time, late_us)
        arrived = on_time
        if not self._at_arrival:
            state[_WAITING].append(on_time)
            arrived = on_time.slice(0, 0)
        late_rows = with_kind(late, LATE, self.schema_out, self._time, watermark_us)
        return concat([self.nothing, self._settle(state, watermark_us, arrived), late_rows])

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        none = self.no_rows()[_EVENTS]
        return concat([self.nothing, self._settle(state, watermark_us, none)])

    def _settle(
        self, state: BucketState, watermark_us: int, arrived: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Results of rows that do not wait, and of those before which nothing that is on time can
        come."""
        until_us = state.advance("final", watermark_us - self._allowed_us).now_us
        waiting, averages = state[_WAITING], state.keyed(_AVERAGES)
        due = concat([waiting.select(None, until_us), arrived])
        waiting.expire(until_us + 1)
        result = self.nothing
        if due.num_rows:
            known = averages.select(hashes=distinct(due.column(HASH).to_numpy()))
            result, changed = self._average(due, self._newest(known))
            averages.append(changed)
        horizon_us = until_us - self._forget_us
        averages.merge(lambda rows, _: self._remembered(rows, horizon_us))
        averages.expire(horizon_us)
        state.wake_at(self._wake_us(state, until_us))
        return result

    def _wake_us(self, state: BucketState, until_us: int) -> int | None:
        """When the next row may be due, or else, when all that is left can be forgotten."""
        waiting = [page.first_us for page in state[_WAITING].pages.values()]
        if waiting:
            return max(min(waiting), until_us + 1) + self._allowed_us
        pages = state[_AVERAGES].pages.values()
        if pages:
            return max(page.last_us for page in pages) + self._forget_us + self._allowed_us + 1
        return None

    def _newest(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Of each key. An event that is older than the last one leaves the time as it was, and adds
        to the weight."""
        codes = key_codes(rows, self._keys)
        weights = rows.column(_WEIGHT).to_numpy()
        order = np.lexsort((weights, times_of(rows, _LAST), codes))
        return rows.take(pa.array(order[is_last(codes[order])]))

    def _remembered(self, rows: pa.RecordBatch, horizon_us: int) -> pa.RecordBatch:
        return self._newest(rows.filter(pa.array(times_of(rows, _LAST) >= horizon_us)))

    def _average(
        self, due: pa.RecordBatch, known: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Results of these rows, and the averages of their keys after them."""
        codes = key_codes(due, self._keys)
        due = due.take(pa.array(sort_versions(due, codes, (self._time,))))
        values = due.column(_VALUE).fill_null(np.nan).to_numpy()
        is_value = np.isfinite(values)
        counted = due.filter(pa.array(is_value))
        steps, begun = self._steps(counted, known)
        before, after = run_steps(steps, begun)
        results = self._results(due, is_value, steps.values, before, after)
        return results, self._changed(counted, steps, after, known)

    def _steps(self, rows: pa.RecordBatch, known: pa.RecordBatch) -> tuple[Steps, Averages]:
        """What happens to each key's averages, row by row, and those that they begin with."""
        codes, known_codes = common_codes(rows, self._keys, known, self._keys)
        times = times_of(rows, self._time)
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]])[: len(codes)])
        order = np.argsort(known_codes)
        at = np.searchsorted(known_codes[order], codes[starts])
        at = np.minimum(at, max(len(order) - 1, 0))
        is_known = np.zeros(len(starts), np.bool_)
        if len(order):
            is_known = known_codes[order][at] == codes[starts]
        places = order[at] if len(order) else at
        begun = [_numbers(known, name, places, is_known) for name in _NUMBERS]
        ages_us = np.diff(times, prepend=times[:1])
        last_us = times_of(known, _LAST)
        ages_us[starts] = self._forget_us + 1
        ages_us[starts[is_known]] = times[starts[is_known]] - last_us[places[is_known]]
        # Negative where a row is older than those before it: these then weigh more than 1.
        ages_us = np.maximum(ages_us, -HALF_LIVES_BACK * self._half_life_us)
        is_kept = ages_us <= self._forget_us
        is_counted = is_kept & (ages_us <= HALF_LIVES_COUNTED * self._half_life_us)
        decays = np.where(is_kept, np.exp2(-(ages_us / self._half_life_us)), 0.0)
        values = rows.column(_VALUE).to_numpy()
        keeps, counts = is_kept.astype(np.float64), is_counted.astype(np.float64)
        return Steps(starts, values, decays, keeps, counts), Averages(*begun)

    def _results(
        self,
        due: pa.RecordBatch,
        is_value: Mask,
        values: Doubles,
        before: Averages,
        after: Averages,
    ) -> pa.RecordBatch:
        count = len(values)
        expected = np.where(before.weight > 0, before.mean, np.nan)
        variance = np.zeros(count)
        np.divide(before.spread, before.weight, where=before.weight > 0, out=variance)
        deviation = np.sqrt(variance)
        distance = values - before.mean
        z = np.divide(distance, deviation, where=deviation > 0, out=np.full(count, np.nan))
        is_far = np.where(deviation > 0, np.abs(z) > self._threshold, distance != 0)
        is_anomaly = is_far & (before.events >= self._min_count)
        places = np.flatnonzero(is_value)
        columns = [due.column(name) for name in self.schema_out.names if name in due.schema.names]
        for found in (after.mean, expected, z):
            spread = np.full(due.num_rows, np.nan)
            spread[places] = found
            columns.append(pa.array(spread, mask=np.isnan(spread)))
        flags = np.zeros(due.num_rows, np.bool_)
        flags[places] = is_anomaly
        columns += [
            pa.array(flags),
            pa.repeat(pa.scalar(self._kind), due.num_rows),
            pa.nulls(due.num_rows, pa.float64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema_out)

    def _changed(
        self, rows: pa.RecordBatch, steps: Steps, after: Averages, known: pa.RecordBatch
    ) -> pa.RecordBatch:
        """The last row of each key, as what is kept of it: the averages as of the newest time."""
        spec = self.tables[_AVERAGES]
        if not rows.num_rows:
            return pa.RecordBatch.from_pylist([], schema=spec.page_schema)
        last = np.append(steps.starts[1:], rows.num_rows) - 1
        taken = rows.take(pa.array(last))
        keys = [taken.column(name) for name in self._keys]
        times = times_of(taken, self._time)
        newest_us = self._newest_us(taken, known)
        fades = np.exp2(-((newest_us - times) / self._half_life_us))
        weight, mean, spread, events = (it[last] for it in after)
        numbers = [pa.array(it) for it in (weight * fades, mean, spread * fades, events)]
        kind = taken.column(self._time).type
        return pa.RecordBatch.from_arrays(
            [taken.column(HASH), *keys, pa.array(newest_us).cast(kind), *numbers],
            schema=spec.page_schema,
        )

    def _newest_us(self, taken: pa.RecordBatch, known: pa.RecordBatch) -> Numbers:
        """Of each key's row, its time, or that of what is known if that is later."""
        newest_us = times_of(taken, self._time).copy()
        codes, known_codes = common_codes(taken, self._keys, known, self._keys)
        by_code = np.full(max(codes.max(initial=-1), known_codes.max(initial=-1)) + 1, -1)
        by_code[known_codes] = np.arange(len(known_codes))
        places = by_code[codes]
        is_known = places >= 0
        last_us = times_of(known, _LAST)[places[is_known]]
        newest_us[is_known] = np.maximum(newest_us[is_known], last_us)
        return newest_us


class Steps(NamedTuple):
    """Rows sorted by key and time: where each key begins, and, row by row, the value, what is left
    of the weight of those before, 0 where nothing is, and 0 where they are no longer counted."""

    starts: Numbers
    values: Doubles
    decays: Doubles
    keeps: Doubles
    counts: Doubles


def run_steps(steps: Steps, begun: Averages) -> tuple[Averages, Averages]:
    """The averages before and after each row. All keys go forward together, a row of each at a
    time, until few are left that have more; these go on alone. Both do the same arithmetic in the
    same order, so that it is all one which way a row is taken."""
    count = len(steps.values)
    before = Averages(*(np.zeros(count) for _ in range(4)))
    after = before.copy()
    lengths = np.diff(np.append(steps.starts, count))
    longest = np.argsort(-lengths, kind="stable")
    starts, lengths = steps.starts[longest], lengths[longest]
    now = Averages(*(it[longest] for it in begun))
    step = 0
    active = len(starts)
    while active > _FEW_KEYS:
        rows = starts[:active] + step
        now = _advance(steps, rows, Averages(*(it[:active] for it in now)), before, after)
        step += 1
        active = int(np.searchsorted(-lengths, -step, side="left"))
    for key in range(active):
        own = range(int(starts[key]) + step, int(starts[key] + lengths[key]))
        _advance_alone(steps, own, tuple(float(it[key]) for it in now), before, after)
    return before, after


def _advance(
    steps: Steps, rows: Numbers, now: Averages, before: Averages, after: Averages
) -> Averages:
    """One row of each key."""
    keeps, decays, values = steps.keeps[rows], steps.decays[rows], steps.values[rows]
    weight, mean, spread = now.weight * keeps, now.mean * keeps, now.spread * keeps
    count = now.events * steps.counts[rows]
    for column, it in zip(before, (weight, mean, spread, count), strict=True):
        column[rows] = it
    weight = decays * weight + 1.0
    distance = values - mean
    mean = mean + distance / weight
    # The product is never negative but for rounding, and then there may be nothing to add it to.
    spread = np.maximum(decays * spread + distance * (values - mean), 0.0)
    count = count + 1.0
    for column, it in zip(after, (weight, mean, spread, count), strict=True):
        column[rows] = it
    return Averages(weight, mean, spread, count)


def _advance_alone(
    steps: Steps, rows: range, now: tuple[float, ...], before: Averages, after: Averages
) -> None:
    """All rows of one key."""
    weight, mean, spread, count = now
    own = slice(rows.start, rows.stop)
    columns = [it[own].tolist() for it in (steps.values, steps.decays, steps.keeps, steps.counts)]
    befores, afters = [], []
    for value, decay, keep, counted in zip(*columns, strict=True):
        weight, mean, spread, count = weight * keep, mean * keep, spread * keep, count * counted
        befores.append((weight, mean, spread, count))
        weight = decay * weight + 1.0
        distance = value - mean
        mean = mean + distance / weight
        spread = max(decay * spread + distance * (value - mean), 0.0)
        count = count + 1.0
        afters.append((weight, mean, spread, count))
    for target, found in ((before, befores), (after, afters)):
        for column, values in zip(target, np.array(found).reshape(-1, 4).T, strict=True):
            column[own] = values


def _numbers(known: pa.RecordBatch, name: str, places: Numbers, is_known: Mask) -> Doubles:
    found: Doubles = np.zeros(len(places))
    found[is_known] = known.column(name).to_numpy()[places[is_known]]
    return found


def smooth(
    frame: DataFrame,
    value: str | Column,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    half_life: Duration,
    threshold: float = 3.0,
    min_count: int = 10,
    forget_after: Duration | None = None,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "arrival",
    buckets: int = 16,
    count_as: str | None = None,
) -> DataFrame:
    """Rows with their key's weighted average; see the head of this module.

    A stream needs a watermark on `time`. Raises `ConfigError` before anything runs.
    """
    from millstream.pipelines.columns import as_column
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    half_life_us = duration_us(half_life, "half_life")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "smoothing", half_life_us)
    check_no_kind(frame)
    check_whole("min_count", min_count)
    check_threshold(threshold)
    emission, _ = parse_emit(emit, ("arrival", "final"))
    forget_us = HALF_LIVES_KEPT * half_life_us
    if forget_after is not None:
        forget_us = duration_us(forget_after, "forget_after")
    frame = frame.drop(WATERMARK_COLUMN)
    columns = frame.columns
    frame, key_names, time_name = name_columns(frame, key, time)
    check_time(frame, time_name)
    check_not_aggregated(frame)
    check_watermark(frame, time_name, "results would never come")
    check_lateness(frame, time_name, lateness.allowed_us)
    check_number(frame, value, "an average is of")
    results = (AVERAGE, EXPECTED, Z, IS_ANOMALY)
    for name in results:
        if name in columns:
            raise ConfigError(f"there is a column {name} already: rename it before")
    frame = frame.withColumn(_VALUE, as_column(value).cast("double"))
    operator = Smoothing(
        arrow_schema(frame.schema),
        key_names,
        time_name,
        half_life_us,
        forget_us,
        lateness.allowed_us,
        float(threshold),
        min_count,
        at_arrival=emission == "arrival",
    )
    found = run_operator(operator, {_EVENTS: frame}, buckets)
    return keep_results(found, [*columns, *results], lateness)


def check_threshold(threshold: object) -> None:
    if not isinstance(threshold, float | int) or not threshold > 0:
        raise ConfigError(
            f"threshold={threshold!r}: so many standard deviations are too many; 3 is usual"
        )
