"""As-of join: each event with the version of a table that was valid at the event's time.

    sales.transform(as_of_join, tax_rates, "country", time="sold_at", valid_from="since")

The table is a history: a row is valid for its key from `valid_from` until the next row of that key.
An event gets the last version at or before its time; with `how="left"` it is emitted without one
too. A version whose `delete` is true ends the one before it: from then on there is none. Versions
may arrive in any order, and long after the events that they apply to, as far as the watermark
allows: an event waits until `time + allowed_lateness` is behind the watermark. Its result is then
final, and depends only on what arrived in time: a replay yields the same.

Of two versions of a key with the same time, the one with the greater `sequence` counts, so a
version can be corrected. Without a sequence the content decides, on every replay alike.

A row behind `watermark - allowed_lateness` is late:

    an event     has no result; with `stragglers="divert"` it is emitted with `_kind` = late and
                 `_lateness` in seconds, with "drop" it is counted in the query's progress
    a version    applies to all events that have no result yet, however old it is: a table may be
                 loaded while events flow. It changes no result that was emitted. It is reported in
                 the same ways, as `_kind` = late_version, with null columns of the event

Versions are stored as long as an event on time can need them: those after the horizon, and of each
key the last one before it, forever. An event or version without a time is late; a null key matches
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from millstream.pipelines.columns import (
    POSITION_COLUMN,
    WATERMARK_COLUMN,
    check_choice,
    check_time,
    check_watermark,
    name_column,
)
from millstream.pipelines.durations import Duration
from millstream.pipelines.joins.frames import (
    On,
    join_lateness,
    keep_final,
    name_keys,
    name_order,
    other_columns,
)
from millstream.pipelines.joins.matching import (
    common_codes,
    has_null_key,
    is_last,
    is_true,
    numbers_of,
    sort_versions,
    take_or_null,
)
from millstream.pipelines.lateness import DropOrDivert, seconds_behind, split_late
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import FINAL, KIND, LATE, LATENESS
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, distinct, key_codes
from millstream.pipelines.state.tables import concat, times_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left"]
LATE_ROWS = "late.as_of"  # where the query's progress counts those that were dropped
LATE_VERSION = "late_version"
_EVENTS = "events"
_VERSIONS = "versions"


@dataclass(frozen=True)
class Events:
    """The enriched side."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str


@dataclass(frozen=True)
class History:
    """The table's side; `carried` are the columns of the result."""

    schema: pa.Schema
    keys: tuple[str, ...]
    valid_from: str
    carried: tuple[str, ...]
    sequence: str | None = None
    deleted: str | None = None

    @property
    def order(self) -> tuple[str, ...]:
        return (self.valid_from,) if self.sequence is None else (self.valid_from, self.sequence)


class AsOfJoin(Operator):
    """The operator: pure, on columns."""

    def __init__(
        self,
        events: Events,
        history: History,
        how: How,
        allowed_lateness_us: int = 0,
    ) -> None:
        self.identity = f"as-of join by {', '.join(history.order)}, deletes by {history.deleted}"
        self.title = f"as-of join by {', '.join(history.order)}, {how}"
        self.inputs = {
            _EVENTS: InputSpec(events.schema, events.keys),
            _VERSIONS: InputSpec(history.schema, history.keys),
        }
        self.tables = {
            _EVENTS: StateTableSpec.carrying(events.schema, events.keys, events.time),
            _VERSIONS: StateTableSpec.carrying(
                history.schema,
                history.keys,
                history.valid_from,
                used=(history.sequence, history.deleted),
                by_key=True,
            ),
        }
        self.schema_out = pa.schema(
            [
                *events.schema,
                *(history.schema.field(name) for name in history.carried),
                pa.field(KIND, pa.string()),
                pa.field(LATENESS, pa.float64()),
            ]
        )
        self._events = events
        self._history = history
        self._how = how
        self._lateness_us = allowed_lateness_us

    def kept(self) -> Mapping[str, str]:
        return {
            _EVENTS: "until the watermark is past them",
            _VERSIONS: "those after the watermark, and of each key the last before it, forever",
        }

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        horizon_us = state.advance("final", watermark_us - self._lateness_us).now_us
        results = [self.nothing, self._finish(state, horizon_us)]
        results += self._add_versions(state, rows[_VERSIONS], horizon_us, watermark_us)
        results += self._add_events(state, rows[_EVENTS], horizon_us, watermark_us)
        state.keyed(_VERSIONS).merge(lambda rows, _: self._needed(rows, horizon_us))
        state.wake_at(self._wake_us(state, horizon_us))
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _finish(self, state: BucketState, horizon_us: int) -> pa.RecordBatch:
        """Events that have become final, with their versions. Rows of this batch are not used: the
        result would depend on where the batch begins."""
        due = state[_EVENTS].select(None, horizon_us)
        state[_EVENTS].expire(horizon_us + 1)
        if not due.num_rows:
            return self.nothing
        last_us = int(times_of(due, self._events.time).max())
        hashes = distinct(due.column(HASH).to_numpy())
        versions = state[_VERSIONS].select(None, last_us, hashes)
        places = self._valid_at(due, versions)
        if self._how == "inner":
            due, places = due.filter(pa.array(places >= 0)), places[places >= 0]
        return self._rows_out(
            [due.column(name) for name in self._events.schema.names],
            [take_or_null(versions.column(name), places) for name in self._history.carried],
            FINAL,
            pa.nulls(due.num_rows, pa.float64()),
        )

    def _valid_at(self, events: pa.RecordBatch, versions: pa.RecordBatch) -> Numbers:
        """For each event the index of its version, or -1."""
        event_codes, codes = common_codes(events, self._events.keys, versions, self._history.keys)
        order = sort_versions(versions, codes, self._history.order)
        all_codes = np.concatenate([codes[order], event_codes])
        times = times_of(versions, self._history.valid_from)[order]
        times = np.concatenate([times, times_of(events, self._events.time)])
        merged = np.lexsort((times, all_codes))  # stable: versions before events of their time
        is_version = merged < len(order)
        latest = np.maximum.accumulate(np.where(is_version, np.arange(len(merged)), -1))
        found = merged[np.maximum(latest, 0)]
        is_found = (latest >= 0) & (all_codes[found] == all_codes[merged])
        places = np.full(len(merged), -1, np.int64)
        places[merged[is_found]] = order[found[is_found]]
        places = places[len(order) :]
        is_deleted = np.append(is_true(versions, self._history.deleted), False)
        return np.where(is_deleted[places], -1, places)

    def _add_versions(
        self, state: BucketState, new: pa.RecordBatch, horizon_us: int, watermark_us: int
    ) -> list[pa.RecordBatch]:
        if not new.num_rows:
            return []
        is_known = ~has_null_key(new, (*self._history.keys, self._history.valid_from))
        state[_VERSIONS].append(new.filter(pa.array(is_known)))
        _, late = split_late(new, self._history.valid_from, horizon_us)
        return [
            self._rows_out(
                [pa.nulls(late.num_rows, field.type) for field in self._events.schema],
                [late.column(name) for name in self._history.carried],
                LATE_VERSION,
                seconds_behind(late, self._history.valid_from, watermark_us),
            )
        ]

    def _add_events(
        self, state: BucketState, new: pa.RecordBatch, horizon_us: int, watermark_us: int
    ) -> list[pa.RecordBatch]:
        if not new.num_rows:
            return []
        on_time, late = split_late(new, self._events.time, horizon_us)
        state[_EVENTS].append(on_time)
        carried = [self._history.schema.field(name) for name in self._history.carried]
        return [
            self._rows_out(
                [late.column(name) for name in self._events.schema.names],
                [pa.nulls(late.num_rows, field.type) for field in carried],
                LATE,
                seconds_behind(late, self._events.time, watermark_us),
            )
        ]

    def _needed(self, versions: pa.RecordBatch, horizon_us: int) -> pa.RecordBatch:
        """Versions that an event after the horizon can get; of equal times only the last one.
        Deletes stay: without them a late older version would become valid again."""
        codes = key_codes(versions, self._history.keys)
        order = sort_versions(versions, codes, self._history.order)
        codes = codes[order]
        times = numbers_of(versions.column(self._history.valid_from))[order]
        is_replaced = ~is_last(codes)
        is_replaced[:-1] &= times[1:] <= np.maximum(times[:-1], horizon_us)
        return versions.take(pa.array(order[~is_replaced]))

    def _rows_out(
        self, events: list[pa.Array], versions: list[pa.Array], kind: str, lateness: pa.Array
    ) -> pa.RecordBatch:
        kinds = pa.repeat(pa.scalar(kind), len(lateness))
        return pa.RecordBatch.from_arrays(
            [*events, *versions, kinds, lateness], schema=self.schema_out
        )

    def _wake_us(self, state: BucketState, horizon_us: int) -> int | None:
        """The watermark at which the next event can be final."""
        waiting = [page.first_us for page in state[_EVENTS].pages.values()]
        if not waiting:
            return None
        return max(min(waiting), horizon_us + 1) + self._lateness_us


def as_of_join(
    frame: DataFrame,
    versions: DataFrame,
    on: On,
    *,
    time: str | Column,
    valid_from: str | Column,
    how: How = "left",
    sequence: str | Column | None = None,
    delete: str | Column | None = None,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    buckets: int = 16,
    count_as: str = LATE_ROWS,
) -> DataFrame:
    """Each row of `frame` with the version valid at its time; see the head of this module.

    Two streams need a watermark on `time`; with one on `valid_from`, too, rows wait for the slower
    of both. Raises `ConfigError` before anything runs.
    """
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    check_choice("how", how, How)
    lateness = join_lateness(stragglers, allowed_lateness, count_as)
    frame, versions = frame.drop(WATERMARK_COLUMN), versions.drop(WATERMARK_COLUMN)
    left_keys, right_keys = name_keys(frame, versions, on)
    frame, time_name = name_column(frame, time)
    versions, from_name = name_column(versions, valid_from)
    check_time(frame, time_name, zoneless_allowed=True)
    check_time(versions, from_name, zoneless_allowed=True)
    check_not_aggregated(frame, versions)
    check_watermark(frame, time_name, "its rows would wait forever")
    versions, sequence_name, deleted_name = name_order(versions, sequence, delete, optional=True)
    hidden = (*right_keys, deleted_name, POSITION_COLUMN)
    carried = other_columns(frame, versions, hidden, (KIND, LATENESS))
    operator = AsOfJoin(
        Events(arrow_schema(frame.schema), left_keys, time_name),
        History(
            arrow_schema(versions.schema),
            right_keys,
            from_name,
            carried,
            sequence_name,
            deleted_name,
        ),
        how,
        lateness.allowed_us,
    )
    result = run_operator(operator, {_EVENTS: frame, _VERSIONS: versions}, buckets)
    return result if stragglers == "divert" else keep_final(result, lateness, versions=LATE_VERSION)
