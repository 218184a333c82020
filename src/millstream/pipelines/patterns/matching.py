"""The operator of patterns: rows of a key in order, matched up to the watermark, or at once.

In the order of time, a row waits until the watermark reaches its time; then it has its place among
the rows of its key. In the order of arrival, it has its place when it arrives. It is scanned once.
What is undecided of a key stays in state:

    waiting     rows after the watermark
    open        of each key with an undecided match: its threads, as bytes (`_matcher.pyx`)
    rows        the rows of undecided matches, which are read again only when a match is found
    due         when the oldest attempt of a key ends
    previous    for PREV: the last rows of each key

A match is emitted when nothing that is on time can change it. So the result does not depend on how
rows are cut into batches. That holds in the order of arrival, too: an attempt that the watermark
ends would not take any row that is on time, as its time is behind the end of the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_text
from millstream.pipelines.joins.matching import common_codes, is_last, sort_versions
from millstream.pipelines.lateness import split_late
from millstream.pipelines.patterns._matcher import (
    EXCLUDED,
    MATCH,
    TIMED_OUT,
    TOO_LONG,
    UNMATCHED,
    Machine,
    open_since,
)
from millstream.pipelines.patterns.matcher import Compiled, StateBytes
from millstream.pipelines.patterns.measures import Evaluation, Matches, Part, shifted_name
from millstream.pipelines.results import FINAL, KIND_FIELD, LATE, with_kind
from millstream.pipelines.state import (
    END_OF_TIME,
    BucketState,
    InputSpec,
    Operator,
    StateTableSpec,
)
from millstream.pipelines.state.keys import (
    HASH,
    Numbers,
    bounds_of,
    distinct,
    first_rows,
    key_codes,
    sorted_order,
)
from millstream.pipelines.state.tables import concat, expand, times_of

EVENTS = "events"
MASK = "_mask"
TIMED_OUT_KIND = "timed_out"
TOO_LONG_KIND = "too_long"
_KINDS = {MATCH: FINAL, UNMATCHED: "unmatched", TIMED_OUT: TIMED_OUT_KIND, TOO_LONG: TOO_LONG_KIND}
_WAITING, _OPEN, _ROWS, _DUE, _PREVIOUS = "waiting", "open", "rows", "due", "previous"
_NUMBER, _VERSION, _STATE, _DUE_AT, _CLOCK = "_number", "_version", "_state", "_due_at", "_clock"
_TIME_TYPE = pa.timestamp("us", tz="UTC")
_CLOSED = -(2**63)  # the time of an attempt, if none is open


class ValueColumn(NamedTuple):
    """A value that conditions read: a column, of the row `shift` before."""

    name: str
    shift: int = 0

    @property
    def stored(self) -> str:
        """The column of stored rows that has it."""
        return shifted_name(self.name, self.shift)


@dataclass(frozen=True)
class Output:
    """What comes out: parts of measures by name; of all rows, the columns of the row."""

    parts: Mapping[str, Part]
    carried: tuple[str, ...] = ()
    all_rows: bool = False
    shows_empty: bool = True


@dataclass(frozen=True)
class Ordered:
    """The input: its columns, with `_mask` and values. `order` decides between equal times; rows
    `by_arrival` are in this order alone."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str
    order: tuple[str, ...] = ()
    values: tuple[ValueColumn, ...] = ()
    by_arrival: bool = False


class PatternMatch(Operator):
    """The operator: pure, on columns."""

    def __init__(
        self,
        rows: Ordered,
        compiled: Compiled,
        output: Output,
        identity: str,
        title: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        self.identity = identity
        self.title = title
        self.by_arrival = "match" if rows.by_arrival else ""
        self._details = details or {}
        schema, keys = rows.schema, rows.keys
        self.inputs = {EVENTS: InputSpec(schema, keys)}
        key_fields = [schema.field(name) for name in keys]
        # What PREV reads is stored with the row: rows before a match are not kept for it.
        before = [it for it in output.parts.values() if it.column is not None and it.shift > 0]
        shifted = [it for it in rows.values if it.shift]
        shifted += [ValueColumn(str(it.column), it.shift) for it in before]
        self._shifted = list(dict.fromkeys(shifted))
        # In the order of arrival, rows of a match may be older than its first one.
        clock = [pa.field(_CLOCK, _TIME_TYPE)] if rows.by_arrival else []
        self._stored = pa.schema(
            [
                *schema,
                pa.field(_NUMBER, pa.int64()),
                *clock,
                *(pa.field(it.stored, schema.field(it.name).type) for it in self._shifted),
            ]
        )
        opened = pa.schema(
            [*key_fields, pa.field(_VERSION, pa.int64()), *clock, pa.field(_STATE, pa.binary())]
        )
        self.tables = {
            _OPEN: StateTableSpec(opened, keys, None, by_key=True),
            _ROWS: StateTableSpec(self._stored, keys, _CLOCK if rows.by_arrival else rows.time),
            _DUE: StateTableSpec(
                pa.schema([*key_fields, pa.field(_DUE_AT, _TIME_TYPE)]), keys, _DUE_AT
            ),
        }
        if not rows.by_arrival:
            self.tables[_WAITING] = StateTableSpec(schema, keys, rows.time)
        self._reach = max((it.shift for it in self._shifted), default=0)
        if self._reach > 0:
            columns = list(dict.fromkeys(it.name for it in self._shifted))
            fields = [schema.field(name) for name in columns]
            previous = pa.schema([*key_fields, pa.field(_NUMBER, pa.int64()), *fields])
            self.tables[_PREVIOUS] = StateTableSpec(previous, keys, None, by_key=True)
        self._rows = rows
        self._compiled = compiled
        self._output = output
        carried = output.carried if output.all_rows else keys
        parts = [pa.field(name, it.type_in(schema)) for name, it in output.parts.items()]
        self.schema_out = pa.schema([*map(schema.field, carried), *parts, KIND_FIELD])

    def kept(self) -> Mapping[str, str]:
        within = duration_text(self._compiled.within_us)
        many = self._compiled.max_rows
        forever = self._compiled.keeps_always
        kept = {
            _OPEN: "forever, of each key" if forever else f"for {within} at most",
            _ROWS: f"those of undecided matches, for {within} and {many} rows of a match at most",
            _DUE: "until the watermark is past them",
        }
        if _WAITING in self.tables:
            kept[_WAITING] = "until the watermark is past them"
        if _PREVIOUS in self.tables:
            kept[_PREVIOUS] = f"forever, the last {self._reach} rows of each key"
        return kept

    def details(self) -> Mapping[str, str]:
        return self._details

    def __getstate__(self) -> dict[str, object]:
        return {name: it for name, it in self.__dict__.items() if name != "_machine"}

    @cached_property
    def _machine(self) -> Machine:
        return self._compiled.machine()

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        late_us = state.advance(LATE, watermark_us).now_us
        on_time, late = split_late(rows[EVENTS], self._rows.time, late_us)
        ripe = on_time if self._rows.by_arrival else self._reached(state, on_time, late_us)
        due = state[_DUE].select(None, late_us)
        state[_DUE].expire(late_us + 1)
        results = [self.nothing, with_kind(late, LATE, self.schema_out)]
        if ripe.num_rows or due.num_rows:
            results.append(self._advance(state, ripe, due, late_us))
        state[_ROWS].expire(max(late_us - self._compiled.within_us, -END_OF_TIME))
        state.keyed(_OPEN).merge(self._newest)
        if _PREVIOUS in self.tables:
            state.keyed(_PREVIOUS).merge(lambda rows, _: self._last_rows(rows))
        state.wake_at(self._wake_us(state, late_us))
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _reached(self, state: BucketState, new: pa.RecordBatch, late_us: int) -> pa.RecordBatch:
        """The rows that the watermark has reached; new rows wait for it."""
        waiting = state[_WAITING]
        ripe = waiting.select(None, late_us)
        waiting.expire(late_us + 1)
        waiting.append(new)
        return ripe

    def _wake_us(self, state: BucketState, late_us: int) -> int | None:
        tables = [state[name] for name in (_WAITING, _DUE) if name in self.tables]
        first = min((it.first_us for table in tables for it in table.pages.values()), default=None)
        if first is None and state[_OPEN].pages and late_us < END_OF_TIME:
            return END_OF_TIME  # without a limit of time, attempts end with the rows of a batch
        return None if first is None else max(first, late_us + 1)

    def _advance(
        self, state: BucketState, ripe: pa.RecordBatch, due: pa.RecordBatch, watermark_us: int
    ) -> pa.RecordBatch:
        """Scan new rows, and end attempts that are due."""
        names = [HASH, *self._rows.keys]
        touched = concat([ripe.select(names), due.select(names)])
        codes = key_codes(touched, self._rows.keys)
        keys = touched.take(pa.array(first_rows(codes)))
        codes = codes[: ripe.num_rows]
        before = self._opened(state, keys)
        # Most keys that are due have other attempts by now, which are due later.
        due_since = watermark_us + 1 - self._compiled.within_us
        is_needed = (before.since != _CLOSED) & (before.since <= due_since)
        is_needed[codes] = True
        if not is_needed.all():
            keys, before = keys.filter(pa.array(is_needed)), before.only(is_needed)
            codes = (np.cumsum(is_needed) - 1)[codes]
        new = self._sorted(state, ripe, codes, keys)
        batch = state.advance("batches", state.advance("batches", 0).now_us + 1).now_us
        first = np.full(keys.num_rows, batch << 32, np.int64)
        scanned = self._scan(new, before, first, watermark_us)
        results = self._results(state, keys, new, scanned, watermark_us)
        self._keep(state, keys, new, scanned, before, batch)
        return results

    def _opened(self, state: BucketState, keys: pa.RecordBatch) -> Opened:
        """What is stored of these keys."""
        rows = self._of_keys(state, _OPEN, keys)
        places = self._places(keys, rows)
        order = sorted_order(places, rows.column(_VERSION).to_numpy())
        newest = order[is_last(places[order]) & (places[order] >= 0)]
        row_of = np.full(keys.num_rows, -1, np.int64)
        row_of[places[newest]] = newest
        column = rows.column(_STATE).take(pa.array(row_of, mask=row_of < 0))
        is_stored = column.is_valid().to_numpy(zero_copy_only=False)
        clocks = np.full(keys.num_rows, _CLOSED, np.int64)
        if self._rows.by_arrival:
            clocks[is_stored] = times_of(rows, _CLOCK)[row_of[is_stored]]
        since = open_since(*StateBytes.of(column), _CLOSED)
        return Opened(column, is_stored, since, clocks)

    def _scan(self, new: Sorted, before: Opened, first: Numbers, watermark_us: int) -> Scanned:
        try:
            events, data, bounds, undecided, following, since = self._machine.scan(
                new.bounds,
                new.mask,
                new.times,
                *new.values,
                *StateBytes.of(before.states),
                first,
                watermark_us,
                watermark_us >= END_OF_TIME,
            )
        except LookupError as error:
            problem = {
                "absent": "a match has no row of the variable of AFTER MATCH SKIP TO",
                "first": "AFTER MATCH SKIP TO names the first row of a match, at which it would "
                "begin again, forever",
            }[str(error)]
            raise ConfigError(f"{problem}: {self.title or self.identity}") from None
        counts = new.bounds[1:] - new.bounds[:-1]
        starts = following - counts
        order = np.arange(len(new.codes)) - new.bounds[new.codes]
        numbers = starts[new.codes] + order
        clocks = before.clocks.copy()
        if self._rows.by_arrival:
            np.maximum.at(clocks, new.codes, new.times)
        after = StateBytes(data, bounds).column()
        return Scanned(events, after, undecided, starts, numbers, since, clocks)

    def _sorted(
        self, state: BucketState, ripe: pa.RecordBatch, codes: Numbers, keys: pa.RecordBatch
    ) -> Sorted:
        """New rows in order, with the values that conditions read."""
        time = () if self._rows.by_arrival else (self._rows.time,)
        order = sort_versions(ripe, codes, (*time, *self._rows.order))
        rows, codes = ripe.take(pa.array(order)), codes[order]
        if self._shifted:
            rows = self._with_shifted(state, rows, codes, keys)
        bounds = bounds_of(codes, keys.num_rows)
        return Sorted(rows, codes, bounds, *self._columns(rows))

    def _columns(self, rows: pa.RecordBatch) -> tuple[Numbers, Numbers, Values]:
        """The mask, the times and the values of rows."""
        count = len(self._rows.values)
        values = np.zeros((count, rows.num_rows), np.int64)
        nulls = np.zeros((count, rows.num_rows), np.uint8)
        for place, it in enumerate(self._rows.values):
            column = rows.column(it.stored)
            nulls[place] = column.is_null().to_numpy(zero_copy_only=False)
            is_double = pa.types.is_floating(column.type)
            filled = column.fill_null(0.0 if is_double else 0).to_numpy()
            if is_double:
                filled = filled + 0.0  # -0.0 becomes 0.0, which it equals
            values[place] = filled.view(np.int64)
        mask = np.ascontiguousarray(rows.column(MASK).to_numpy())
        return mask, np.ascontiguousarray(times_of(rows, self._rows.time)), Values(values, nulls)

    def _with_shifted(
        self, state: BucketState, rows: pa.RecordBatch, codes: Numbers, keys: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Rows with the columns of neighbour rows, some of which came in earlier batches."""
        names = list(dict.fromkeys(it.name for it in self._shifted))
        both, both_codes, is_new = rows.select(names), codes, np.ones(len(codes), np.bool_)
        if self._reach > 0:
            with_rows = keys.take(pa.array(distinct(codes)))
            before = self._last_rows(self._of_keys(state, _PREVIOUS, with_rows))
            places = self._places(keys, before)
            order = sorted_order(places, before.column(_NUMBER).to_numpy())
            before, places = before.take(pa.array(order)), places[order]
            both = concat([before.select(names), both])
            both_codes = np.concatenate([places, codes])
            merged = np.argsort(both_codes, kind="stable")
            both, both_codes = both.take(pa.array(merged)), both_codes[merged]
            is_new = merged >= before.num_rows
        count = len(both_codes)
        for it in self._shifted:
            source = np.arange(count) - it.shift
            is_there = (source >= 0) & (source < count)
            is_there[is_there] &= both_codes[source[is_there]] == both_codes[is_there]
            taken = pa.array(np.where(is_there, source, 0), mask=~is_there)
            column = both.column(it.name).take(taken) if count else both.column(it.name)
            rows = rows.append_column(it.stored, column.filter(pa.array(is_new)))
        return rows

    def _of_keys(self, state: BucketState, table: str, keys: pa.RecordBatch) -> pa.RecordBatch:
        return state[table].select(hashes=distinct(keys.column(HASH).to_numpy()))

    def _places(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> Numbers:
        """The place of the key of each row in `keys`, or -1."""
        ours, theirs = common_codes(keys, self._rows.keys, rows, self._rows.keys)
        place_of = np.full(int(max(ours.max(initial=-1), theirs.max(initial=-1))) + 1, -1, np.int64)
        place_of[ours] = np.arange(len(ours))
        return place_of[theirs]

    def _newest(self, rows: pa.RecordBatch, is_whole: bool) -> pa.RecordBatch:
        """Of each key, the newest threads; keys that are closed are dropped at last."""
        codes = key_codes(rows, self._rows.keys)
        order = sorted_order(codes, rows.column(_VERSION).to_numpy())
        found = rows.take(pa.array(order[is_last(codes[order])]))
        if not is_whole or not found.column(_STATE).null_count:
            return found
        return found.filter(found.column(_STATE).is_valid())

    def _last_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Of each key, the rows that PREV can reach."""
        codes = key_codes(rows, self._rows.keys)
        order = sorted_order(codes, rows.column(_NUMBER).to_numpy())
        codes = codes[order]
        is_near = np.ones(len(codes), np.bool_)
        is_near[: -self._reach] = codes[: -self._reach] != codes[self._reach :]
        return rows if is_near.all() else rows.take(pa.array(order[is_near]))

    # What is kept

    def _keep(
        self,
        state: BucketState,
        keys: pa.RecordBatch,
        new: Sorted,
        scanned: Scanned,
        before: Opened,
        batch: int,
    ) -> None:
        versions = pa.array(np.full(keys.num_rows, batch, np.int64))
        clock = [pa.array(scanned.clocks).view(_TIME_TYPE)] * self._rows.by_arrival
        opened = self._batch(_OPEN, [*keys.columns, versions, *clock, scanned.states])
        is_changed = pc.or_(pa.array(before.is_stored), scanned.states.is_valid())
        state[_OPEN].append(opened.filter(is_changed))
        since = scanned.since
        later = np.flatnonzero((since != _CLOSED) & (since != before.since))
        if self._compiled.within_us < END_OF_TIME:
            due = pa.array(since[later] + self._compiled.within_us - 1).view(_TIME_TYPE)
            key_columns = keys.take(pa.array(later)).columns
            state[_DUE].append(self._batch(_DUE, [*key_columns, due]))
        is_open = (since != _CLOSED)[new.codes]
        is_kept = is_open & (scanned.numbers >= scanned.undecided[new.codes])
        state[_ROWS].append(self._numbered(new, scanned).filter(pa.array(is_kept)))
        if _PREVIOUS in self.tables:
            is_near = np.arange(len(new.codes)) >= new.bounds[new.codes + 1] - self._reach
            rows = self._numbered(new, scanned).filter(pa.array(is_near))
            names = self.tables[_PREVIOUS].page_schema.names
            state[_PREVIOUS].append(rows.select(names))

    def _batch(self, table: str, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self.tables[table].page_schema)

    def _numbered(self, new: Sorted, scanned: Scanned) -> pa.RecordBatch:
        """New rows as they are stored."""
        schema = self.tables[_ROWS].page_schema
        made = {_NUMBER: pa.array(scanned.numbers)}
        if self._rows.by_arrival:
            made[_CLOCK] = pa.array(scanned.clocks[new.codes]).view(_TIME_TYPE)
        columns = [made[name] if name in made else new.rows.column(name) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    # What comes out

    def _results(
        self,
        state: BucketState,
        keys: pa.RecordBatch,
        new: Sorted,
        scanned: Scanned,
        watermark_us: int,
    ) -> pa.RecordBatch:
        events = scanned.events
        if not self._output.shows_empty:
            events = events[(events[:, 2] < events[:, 3]) | (events[:, 1] != MATCH)]
        if not len(events):
            return self.nothing
        rows, codes = self._rows_of(state, keys, new, scanned, events)
        bounds = bounds_of(codes, keys.num_rows)
        numbers = rows.column(_NUMBER).to_numpy()
        code = events[:, 0]
        begin = bounds[code]
        base = np.append(numbers, 0)[begin]
        first, end = begin + events[:, 2] - base, begin + events[:, 3] - base
        is_match = events[:, 1] != UNMATCHED
        chosen = np.flatnonzero(is_match)
        mask, times, values = self._columns(rows)
        is_first = events[:, 5].astype(np.uint8)
        is_end = ((end == bounds[code + 1]) & (watermark_us >= END_OF_TIME)).astype(np.uint8)
        labels = self._machine.label(
            mask, times, *values, first[chosen], end[chosen], events[chosen, 1],
            is_first[chosen], is_end[chosen],
        )  # fmt: skip
        matches = Matches(
            first[chosen], end[chosen], labels, events[chosen, 4],
            begin[chosen], bounds[code + 1][chosen],
        )  # fmt: skip
        kinds = events[chosen, 1]
        if not self._output.all_rows:
            return self._one_row(keys, code[chosen], rows, matches, kinds)
        unmatched = ~is_match
        alone = expand(first[unmatched], (end - first)[unmatched])
        return concat([self._all_rows(rows, matches, kinds), self._unmatched(rows, alone)])

    def _rows_of(
        self,
        state: BucketState,
        keys: pa.RecordBatch,
        new: Sorted,
        scanned: Scanned,
        events: Numbers,
    ) -> tuple[pa.RecordBatch, Numbers]:
        """The rows of keys with events, in order, and the places of their keys."""
        earliest = np.full(keys.num_rows, np.iinfo(np.int64).max)
        np.minimum.at(earliest, events[:, 0], events[:, 2])
        has_event = earliest < np.iinfo(np.int64).max
        fresh = self._numbered(new, scanned).filter(pa.array(has_event[new.codes]))
        codes = new.codes[has_event[new.codes]]
        is_long = has_event & (earliest < scanned.starts)
        if not is_long.any():
            return fresh, codes
        old = self._of_keys(state, _ROWS, keys.filter(pa.array(is_long)))
        places = self._places(keys, old)
        is_used = places >= 0
        is_used[is_used] &= old.column(_NUMBER).to_numpy()[is_used] >= earliest[places[is_used]]
        old, places = old.filter(pa.array(is_used)), places[is_used]
        both = concat([old, fresh])
        codes = np.concatenate([places, codes])
        order = sorted_order(codes, both.column(_NUMBER).to_numpy())
        return both.take(pa.array(order)), codes[order]

    def _one_row(
        self,
        keys: pa.RecordBatch,
        codes: Numbers,
        rows: pa.RecordBatch,
        matches: Matches,
        kinds: Numbers,
    ) -> pa.RecordBatch:
        match = np.arange(len(codes))
        evaluation = self._evaluation(rows, matches, match, matches.offsets[1:])
        taken = keys.take(pa.array(codes))
        return self._batch_out(
            [taken.column(name) for name in self._rows.keys],
            [evaluation.column(part) for part in self._output.parts.values()],
            kinds,
        )

    def _all_rows(self, rows: pa.RecordBatch, matches: Matches, kinds: Numbers) -> pa.RecordBatch:
        lengths = matches.end - matches.first
        is_shown = matches.labels & np.uint8(EXCLUDED) == 0
        match = np.repeat(np.arange(len(lengths)), lengths)[is_shown]
        places = expand(matches.first, lengths)[is_shown]
        upto = np.flatnonzero(is_shown) + 1
        empty = np.flatnonzero(lengths == 0)
        match = np.concatenate([match, empty])
        places = np.concatenate([places, matches.first[empty]])
        upto = np.concatenate([upto, matches.offsets[empty]])
        evaluation = self._evaluation(rows, matches, match, upto)
        taken = rows.take(pa.array(places))
        return self._batch_out(
            [taken.column(name) for name in self._output.carried],
            [evaluation.column(part) for part in self._output.parts.values()],
            kinds[match],
        )

    def _unmatched(self, rows: pa.RecordBatch, places: Numbers) -> pa.RecordBatch:
        taken = rows.take(pa.array(places))
        types = [self.schema_out.field(name).type for name in self._output.parts]
        return self._batch_out(
            [taken.column(name) for name in self._output.carried],
            [pa.nulls(len(places), it) for it in types],
            np.full(len(places), UNMATCHED),
        )

    def _evaluation(
        self, rows: pa.RecordBatch, matches: Matches, match: Numbers, upto: Numbers
    ) -> Evaluation:
        return Evaluation(rows, matches, match, upto, self._compiled.program.variables)

    def _batch_out(
        self, columns: list[pa.Array], parts: list[pa.Array], kinds: Numbers
    ) -> pa.RecordBatch:
        names = pa.array([_KINDS[it] for it in range(len(_KINDS))])
        return pa.RecordBatch.from_arrays(
            [*columns, *parts, names.take(pa.array(kinds))], schema=self.schema_out
        )


class Values(NamedTuple):
    """The values that conditions read, by column and row, as 64 bits, and which are null."""

    bits: Numbers
    nulls: np.ndarray


class Sorted(NamedTuple):
    """New rows by key and order: `codes` are the places of their keys, `bounds` where the rows of
    each key begin."""

    rows: pa.RecordBatch
    codes: Numbers
    bounds: Numbers
    mask: Numbers
    times: Numbers
    values: Values


class Opened(NamedTuple):
    """What is stored of each key: its state, or null; since when it has an undecided match, or
    `_CLOSED`; in the order of arrival, the latest time of its rows since then, or later."""

    states: pa.BinaryArray
    is_stored: np.ndarray
    since: Numbers
    clocks: Numbers

    def only(self, is_chosen: np.ndarray) -> Opened:
        states = self.states.filter(pa.array(is_chosen))
        return Opened(states, *(it[is_chosen] for it in self[1:]))


class Scanned(NamedTuple):
    """The result of a scan. `undecided` and `starts` are numbers of rows for each key: the first
    undecided row, and the first new row; `numbers` those of new rows; `since` is the time of the
    first undecided row of each key, and `clocks` are the latest times."""

    events: Numbers
    states: pa.BinaryArray
    undecided: Numbers
    starts: Numbers
    numbers: Numbers
    since: Numbers
    clocks: Numbers
