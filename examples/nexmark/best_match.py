"""Best match: of each row that lasts, the best of what happened meanwhile. The winning bid.

    auctions.transform(best_match, bids, {"id": "auction"}, time="opens", until="closes",
                       right_time="bid_at", order_by="price desc, bid_at")

A row of the left lasts from `time` to `until`, both included. Of the events on the right with its
key and in that time the first by `order_by` comes out beside it: the highest bid of an auction, the
first click of a visit, the last reading of a run. It comes once, when no better can come: when the
watermark is `allowed_lateness` past `until`. It is final, and a replay yields the same. With
`how="left"` rows that nothing happened to come out, too.

Both sides may come in any order. `order_by` is written as in SQL, columns of the right, each with
`desc` or without; nulls come last, and NaN is above all numbers. What differs in none of them is
decided by its content, on every replay alike. Rows of one key may overlap in time: an event may be
the best of several.

What comes `allowed_lateness` behind the watermark, by `time` or `right_time`, is late. It is
counted in the query's progress, or with `stragglers="divert"` comes out, with `_lateness` in
seconds: rows as `_kind` = late, events as `late_event`, with the columns of the left null. What has
no time is late. A null key matches nothing.

State is what lasts, for each the best so far, and events that are not behind the watermark yet, as
a row may still come that they belong to.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    WATERMARK_COLUMN,
    check_choice,
    check_time,
    check_watermark,
    kind_of,
    name_column,
)
from millstream.pipelines.durations import Duration
from millstream.pipelines.joins.frames import (
    On,
    join_lateness,
    keep_final,
    name_keys,
    other_columns,
)
from millstream.pipelines.joins.matching import (
    common_codes,
    has_null_key,
    numbers_of,
    pairs,
    take_or_null,
)
from millstream.pipelines.lateness import DropOrDivert, is_late, seconds_behind
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import FINAL, KIND, LATE, LATENESS
from millstream.pipelines.state import HASH, BucketState, InputSpec, Operator, StateTableSpec, Table
from millstream.pipelines.state.keys import Numbers, distinct, key_hashes
from millstream.pipelines.state.tables import concat, times_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left"]
LATE_ROWS = "late.best_match"  # where the query's progress counts those that were dropped
LATE_EVENT = "late_event"
_LASTING = "lasting"
_EVENTS = "events"
_BEST = "best"


class Lasting(NamedTuple):
    """The side whose rows last from `time` to `until`."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    until: str


class Term(NamedTuple):
    """By which column events are ordered."""

    column: str
    is_descending: bool


@dataclass(frozen=True)
class Events:
    """The side of which the best is sought; `carried` are the columns that come out."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    order: tuple[Term, ...]
    carried: tuple[str, ...]


class BestMatch(Operator):
    """The operator: pure, on columns."""

    def __init__(
        self,
        lasting: Lasting,
        events: Events,
        how: How,
        allowed_lateness_us: int = 0,
    ) -> None:
        words = [f"{it.column} desc" if it.is_descending else it.column for it in events.order]
        self.identity = f"best match from {lasting.time} on, by {', '.join(words)}"
        self.title = f"best match by {', '.join(words)}, {how}"
        self.inputs = {
            _LASTING: InputSpec(lasting.schema, lasting.keys),
            _EVENTS: InputSpec(events.schema, events.keys),
        }
        self.tables = {
            _LASTING: StateTableSpec(lasting.schema, lasting.keys, lasting.until),
            _EVENTS: StateTableSpec(events.schema, events.keys, events.time),
            _BEST: StateTableSpec(events.schema, events.keys, None, by_key=True),
        }
        self.schema_out = pa.schema(
            [
                *lasting.schema,
                *(events.schema.field(name) for name in events.carried),
                pa.field(KIND, pa.string()),
                pa.field(LATENESS, pa.float64()),
            ]
        )
        self._lasting = lasting
        self._events = events
        self._how = how
        self._lateness_us = allowed_lateness_us

    def kept(self) -> Mapping[str, str]:
        return {
            _LASTING: f"until the watermark is past {self._lasting.until}",
            _EVENTS: "until the watermark is past them",
            _BEST: "of each row that lasts the best so far",
        }

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        horizon_us = state.advance("final", watermark_us - self._lateness_us).now_us
        found = [self.nothing, self._settle(state, horizon_us)]
        for name, times in (
            (_LASTING, (self._lasting.time, self._lasting.until)),
            (_EVENTS, (self._events.time,)),
        ):
            is_late = self._is_late(rows[name], times, horizon_us)
            state[name].append(rows[name].filter(pc.invert(is_late)))
            found.append(self._late_rows(name, rows[name].filter(is_late), watermark_us))
        state.wake_at(self._wake_us(state, horizon_us))
        return concat(found)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _settle(self, state: BucketState, horizon_us: int) -> pa.RecordBatch:
        """Rows that are over, with the best of their time. Events up to the horizon can belong to
        nothing that is still to come: of them only the best of what lasts on are kept."""
        passed = state[_EVENTS].select(None, horizon_us)
        over = state[_LASTING].select(None, horizon_us)
        if not passed.num_rows and not over.num_rows:
            return self.nothing
        hashes = distinct(np.concatenate([it.column(HASH).to_numpy() for it in (passed, over)]))
        lasting, best = state[_LASTING].select(hashes=hashes), state.keyed(_BEST)
        events = concat([passed, best.select(hashes=hashes)])
        places = self._best_of(lasting, events)
        state[_EVENTS].expire(horizon_us + 1)
        state[_LASTING].expire(horizon_us + 1)
        is_over = times_of(lasting, self._lasting.until) <= horizon_us
        kept = distinct(places[~is_over])
        kept = kept[(kept >= 0) & (kept < passed.num_rows)]  # the others are in the table already
        best.append(events.take(pa.array(kept)))
        best.merge(lambda rows, _: self._still_best(state[_LASTING], rows))
        return self._rows_over(lasting.filter(pa.array(is_over)), events, places[is_over])

    def _best_of(self, lasting: pa.RecordBatch, events: pa.RecordBatch) -> Numbers:
        """For each row that lasts the place of its event; -1 if there is none."""
        codes, event_codes = common_codes(lasting, self._lasting.keys, events, self._events.keys)
        codes = np.where(has_null_key(lasting, self._lasting.keys), -1, codes)
        rows, places = pairs(codes, event_codes)
        times = times_of(events, self._events.time)[places]
        begins = times_of(lasting, self._lasting.time)[rows]
        ends = times_of(lasting, self._lasting.until)[rows]
        is_within = (begins <= times) & (times <= ends)
        rows, places = rows[is_within], places[is_within]
        for term in (*self._events.order, None):
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            if len(starts) == len(rows):
                break  # one is left of each
            ranks = self._ranks(events.take(pa.array(places)), term)
            lengths = np.diff(starts, append=len(rows))
            is_first = ranks == np.repeat(np.minimum.reduceat(ranks, starts), lengths)
            rows, places = rows[is_first], places[is_first]
        best = np.full(lasting.num_rows, -1, np.int64)
        best[rows] = places  # what is still there twice is the same event, sent twice
        return best

    def _ranks(self, events: pa.RecordBatch, term: Term | None) -> Numbers:
        """Numbers of which the least is the best; without a term, by content."""
        if term is None:
            columns = [events.column(name) for name in self._events.schema.names]
            return key_hashes(columns, events.num_rows).view(np.int64)
        column = events.column(term.column)
        is_number = pa.types.is_integer(column.type) or pa.types.is_temporal(column.type)
        if is_number and not column.null_count:
            numbers = numbers_of(column)
            return ~numbers if term.is_descending else numbers
        direction = "descending" if term.is_descending else "ascending"
        ranks = numbers_of(pc.rank(column, direction, tiebreaker="dense").cast(pa.int64()))
        if term.is_descending and pa.types.is_floating(column.type):
            # Arrow has NaN last, like nulls; Spark has it above all numbers.
            is_nan = pc.fill_null(pc.is_nan(column), False)
            ranks = np.where(is_nan.to_numpy(zero_copy_only=False), 0, ranks)
        return ranks

    def _still_best(self, lasting: Table, events: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the events that are the best of something that lasts."""
        hashes = distinct(events.column(HASH).to_numpy())
        places = distinct(self._best_of(lasting.select(hashes=hashes), events))
        return events.take(pa.array(places[places >= 0]))

    def _rows_over(
        self, lasting: pa.RecordBatch, events: pa.RecordBatch, places: Numbers
    ) -> pa.RecordBatch:
        if self._how == "inner":
            lasting, places = lasting.filter(pa.array(places >= 0)), places[places >= 0]
        return self._rows_out(
            [lasting.column(name) for name in self._lasting.schema.names],
            [take_or_null(events.column(name), places) for name in self._events.carried],
            FINAL,
            pa.nulls(lasting.num_rows, pa.float64()),
        )

    def _late_rows(self, side: str, late: pa.RecordBatch, watermark_us: int) -> pa.RecordBatch:
        """What came too late, with the columns of the other side null."""
        lasting = [pa.nulls(late.num_rows, field.type) for field in self._lasting.schema]
        carried = [self._events.schema.field(name).type for name in self._events.carried]
        events = [pa.nulls(late.num_rows, kind) for kind in carried]
        time = self._lasting.time if side == _LASTING else self._events.time
        if side == _LASTING:
            lasting = [late.column(name) for name in self._lasting.schema.names]
        else:
            events = [late.column(name) for name in self._events.carried]
        lateness = seconds_behind(late, time, watermark_us)
        return self._rows_out(lasting, events, LATE if side == _LASTING else LATE_EVENT, lateness)

    def _is_late(self, rows: pa.RecordBatch, times: tuple[str, ...], horizon_us: int) -> pa.Array:
        """What is behind the horizon by one of these columns, or has none."""
        first, *others = (is_late(rows, name, horizon_us) for name in times)
        return functools.reduce(pc.or_, others, first)

    def _rows_out(
        self, lasting: list[pa.Array], events: list[pa.Array], kind: str, lateness: pa.Array
    ) -> pa.RecordBatch:
        kinds = pa.repeat(pa.scalar(kind), len(lateness))
        return pa.RecordBatch.from_arrays(
            [*lasting, *events, kinds, lateness], schema=self.schema_out
        )

    def _wake_us(self, state: BucketState, horizon_us: int) -> int | None:
        """When the next row may be over."""
        ends = [page.first_us for page in state[_LASTING].pages.values()]
        ends += [page.last_us for page in state[_EVENTS].pages.values()]  # they need to go, too
        return max(min(ends), horizon_us + 1) + self._lateness_us if ends else None


def best_match(
    frame: DataFrame,
    events: DataFrame,
    on: On,
    *,
    time: str | Column,
    until: str | Column,
    right_time: str | Column,
    order_by: str,
    how: How = "inner",
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    buckets: int = 16,
    count_as: str = LATE_ROWS,
) -> DataFrame:
    """Each row of `frame` with the best event of its time; see the head of this module.

    Streams need a watermark on `time` and on `right_time`. Raises `ConfigError` before anything
    runs.
    """
    from millstream.pipelines.state import arrow_schema, run_operator

    check_choice("how", how, How)
    lateness = join_lateness(stragglers, allowed_lateness, count_as)
    frame, events = frame.drop(WATERMARK_COLUMN), events.drop(WATERMARK_COLUMN)
    left_keys, right_keys = name_keys(frame, events, on)
    frame, time_name = name_column(frame, time)
    frame, until_name = name_column(frame, until)
    events, event_time = name_column(events, right_time)
    for side, name in ((frame, time_name), (frame, until_name), (events, event_time)):
        check_time(side, name, zoneless_allowed=True)
    check_not_aggregated(frame, events)
    check_watermark(frame, time_name, "no row would ever be final")
    check_watermark(events, event_time, "no row would ever be final")
    order = parse_order(events, order_by)
    carried = other_columns(frame, events, right_keys, (KIND, LATENESS))
    operator = BestMatch(
        Lasting(arrow_schema(frame.schema), left_keys, time_name, until_name),
        Events(arrow_schema(events.schema), right_keys, event_time, order, carried),
        how,
        lateness.allowed_us,
    )
    result = run_operator(operator, {_LASTING: frame, _EVENTS: events}, buckets)
    return result if stragglers == "divert" else keep_final(result, lateness, events=LATE_EVENT)


def parse_order(frame: DataFrame, text: str) -> tuple[Term, ...]:
    """`"price desc, time"` as terms. Raises `ConfigError`."""
    terms = []
    for part in text.split(","):
        name, _, direction = part.strip().partition(" ")
        if direction.strip().lower() not in ("", "asc", "desc"):
            raise ConfigError(
                f'order_by={text!r}: name columns, each with desc or without, like "price desc, '
                'time"; make a column of an expression with withColumn'
            )
        kind = kind_of(frame, name)
        if kind.startswith(("array", "struct", "map", "binary", "variant")):
            raise ConfigError(f"order_by={text!r}: {name} is {kind}, which has no order here")
        terms.append(Term(name, direction.strip().lower() == "desc"))
    return tuple(terms)
