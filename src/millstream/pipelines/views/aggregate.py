"""Groups of rows that come and go: count, sum, avg, min, max and count(distinct), kept up to date.

    orders.transform(aggregate, key="user", spent="sum(amount)", last="max(at)")

For each group that changes, the row that it had is emitted with `_weight` -1 and the row that it
has now with `_weight` 1. A group whose last row is removed has no row.

    count sum avg              a counter and a sum per group, whatever the number of its rows
    min max count(distinct)    the distinct values of each group, with how often each occurs
    sum, avg of doubles        the same, because sums of doubles that are corrected drift. Their
                               cost grows with the group: prefer decimals and integers

Types are those of Spark. A sum that does not fit is an error, as in Spark's ANSI mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column, listed, name_column
from millstream.pipelines.joins.matching import common_codes
from millstream.pipelines.joins.weights import (
    WEIGHT,
    WEIGHT_FIELD,
    consolidate,
    weighted,
    weights_of,
)
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, first_rows, key_codes
from millstream.pipelines.state.keys import distinct as distinct_values
from millstream.pipelines.state.tables import concat
from millstream.pipelines.views.sums import (
    averages_of,
    float_sums,
    greatest_and_least,
    is_exact,
    result_type,
    sums_by,
    sums_type,
)
from millstream.pipelines.views.weights import with_weights
from millstream.pipelines.windows.aggregates import DISTINCT, Aggregate, Given, parse_aggregates
from millstream.pipelines.windows.measures import expression_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = ("count", "sum", "avg", "min", "max", DISTINCT)
_INPUT, _GROUPS = "rows", "groups"
_COUNT = "_rows"
_VALUE = "_value"


class Measure(NamedTuple):
    """One aggregate of a column of the input; None for count(*)."""

    name: str
    kind: str
    of: str | None
    expression: str = ""  # that the column has the values of
    earlier: str = ""  # the same, as earlier versions named it


class Grouped(Operator):
    """The operator: pure, on columns. Without measures, its rows are the distinct keys."""

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], measures: Sequence[Measure] = ()
    ) -> None:
        self._keys = tuple(keys)
        self._measures = tuple(measures)
        groups = f"groups by {', '.join(keys)}"
        self.identity = f"{groups}: {_shown((it, it.expression) for it in measures)}"
        self.earlier = (f"{groups}: {_shown((it, it.earlier) for it in measures)}",)
        used = dict.fromkeys(it.of for it in measures if it.of is not None)
        kinds = {name: schema.field(name).type for name in used}
        self._counted = [it for it in used if any(_counts(m, kinds[it]) for m in self._of(it))]
        self._summed = [it for it in used if any(_sums(m, kinds[it]) for m in self._of(it))]
        self._valued = [it for it in used if any(_keeps(m, kinds[it]) for m in self._of(it))]
        key_fields = [schema.field(name) for name in keys]
        self.inputs = {
            _INPUT: InputSpec(
                pa.schema([*key_fields, *(schema.field(name) for name in used), WEIGHT_FIELD]),
                self._keys,
            )
        }
        groups = pa.schema(
            [
                *key_fields,
                pa.field(_COUNT, pa.int64()),
                *(pa.field(_counter(it), pa.int64()) for it in self._counted),
                *(pa.field(_sum(it), sums_type(kinds[it])) for it in self._summed),
            ]
        )
        self.tables = {_GROUPS: StateTableSpec(groups, self._keys, None, by_key=True)} | {
            _values(it): StateTableSpec(
                pa.schema([*key_fields, pa.field(_VALUE, kinds[it]), WEIGHT_FIELD]),
                self._keys,
                None,
                by_key=True,
            )
            for it in self._valued
        }
        results = [
            pa.field(it.name, result_type(it.kind, None if it.of is None else kinds[it.of]))
            for it in measures
        ]
        self.schema_out = pa.schema([*key_fields, *results, WEIGHT_FIELD])

    def _of(self, column: str) -> list[Measure]:
        return [it for it in self._measures if it.of == column]

    def kept(self) -> Mapping[str, str]:
        groups = {_GROUPS: "a row per group"}
        return groups | {_values(it): "the distinct values of each group" for it in self._valued}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = rows[_INPUT]
        hashes = distinct_values(new.column(HASH).to_numpy())
        groups = self._add_up(state[_GROUPS].select(hashes=hashes))
        change = self._add_up(self._as_groups(new))
        values = {it: consolidate(state[_values(it)].select(hashes=hashes)) for it in self._valued}
        changed = {it: consolidate(self._as_values(new, it)) for it in self._valued}
        before = self._results(groups, values)
        after = self._results(
            self._add_up(concat([groups, change])),
            {it: consolidate(concat([values[it], changed[it]])) for it in self._valued},
        )
        state[_GROUPS].append(change)
        state.keyed(_GROUPS).merge(self._left_over)
        for it in self._valued:
            state[_values(it)].append(changed[it])
            state.keyed(_values(it)).merge(lambda rows, _: consolidate(rows))
        return consolidate(concat([self.nothing, weighted(before, -1), weighted(after, 1)]))

    def _as_groups(self, new: pa.RecordBatch) -> pa.RecordBatch:
        """Each row as the change that it is to its group."""
        weights = weights_of(new)
        columns = [new.column(HASH), *(new.column(name) for name in self._keys), pa.array(weights)]
        for it in self._counted:
            is_there = new.column(it).is_valid().to_numpy(zero_copy_only=False)
            columns.append(pa.array(np.where(is_there, weights, 0)))
        each = np.arange(new.num_rows)
        columns += [sums_by(new.column(it), weights, each, new.num_rows) for it in self._summed]
        return pa.RecordBatch.from_arrays(columns, schema=self.tables[_GROUPS].page_schema)

    def _as_values(self, new: pa.RecordBatch, column: str) -> pa.RecordBatch:
        there = new.filter(new.column(column).is_valid())
        columns = [there.column(name) for name in (HASH, *self._keys, column, WEIGHT)]
        schema = self.tables[_values(column)].page_schema
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _add_up(self, groups: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each key."""
        codes = key_codes(groups, self._keys)
        firsts = pa.array(first_rows(codes))
        ones = np.ones(groups.num_rows, np.int64)
        names = (HASH, *self._keys)
        columns = [groups.column(name).take(firsts) for name in names]
        columns += [
            sums_by(groups.column(it), ones, codes, len(firsts))
            for it in groups.schema.names
            if it not in names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=groups.schema)

    def _left_over(self, groups: pa.RecordBatch, is_whole: bool) -> pa.RecordBatch:
        """Without groups of which nothing is left."""
        summed = self._add_up(groups)
        kept = np.zeros(summed.num_rows, np.bool_)
        for name in (_COUNT, *map(_counter, self._counted)):
            kept |= summed.column(name).to_numpy() != 0
        for name in map(_sum, self._summed):
            kept |= np.array([bool(it) for it in summed.column(name).to_pylist()], np.bool_)
        return summed.filter(pa.array(kept))

    def _results(
        self, groups: pa.RecordBatch, values: Mapping[str, pa.RecordBatch]
    ) -> pa.RecordBatch:
        """The rows of the view for these groups, without weights."""
        groups = groups.filter(pa.array(groups.column(_COUNT).to_numpy() > 0))
        columns = [groups.column(name) for name in self._keys]
        found = {it: _Values.of(groups, rows, self._keys) for it, rows in values.items()}
        columns += [self._result(it, groups, found) for it in self._measures]
        fields = self.schema_out.names[:-1]
        schema = pa.schema([self.schema_out.field(name) for name in fields])
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _result(
        self, measure: Measure, groups: pa.RecordBatch, values: Mapping[str, _Values]
    ) -> pa.Array:
        kind, of = measure.kind, measure.of
        if of is None:
            return groups.column(_COUNT)
        if kind == "count":
            return groups.column(_counter(of))
        if kind in ("min", "max", DISTINCT) or not is_exact(self._kind(of)):
            return values[of].result(kind)
        counts = groups.column(_counter(of)).to_numpy()
        return averages_of(
            groups.column(_sum(of)), counts, kind, self.schema_out.field(measure.name).type
        )

    def _kind(self, column: str) -> pa.DataType:
        return self.inputs[_INPUT].schema.field(column).type


class _Values(NamedTuple):
    """The distinct values of groups: which group each belongs to, and how often it occurs."""

    values: pa.Array
    codes: Numbers
    weights: Numbers
    group_count: int

    @classmethod
    def of(cls, groups: pa.RecordBatch, rows: pa.RecordBatch, keys: Sequence[str]) -> _Values:
        rows = rows.filter(pa.array(weights_of(rows) > 0))
        ours, theirs = common_codes(groups, keys, rows, keys)
        places = np.full(max(ours.max(initial=-1), theirs.max(initial=-1)) + 1, -1, np.int64)
        places[ours] = np.arange(len(ours))
        codes = places[theirs]
        order = pa.array(np.flatnonzero(codes >= 0))
        rows = rows.take(order)
        return cls(rows.column(_VALUE), codes[codes >= 0], weights_of(rows), groups.num_rows)

    def result(self, kind: str) -> pa.Array:
        if kind == DISTINCT:
            return pa.array(np.bincount(self.codes, minlength=self.group_count).astype(np.int64))
        if kind in ("min", "max"):
            return greatest_and_least(self.values, self.codes, self.group_count)[kind == "min"]
        return float_sums(self.values, self.weights, self.codes, self.group_count, kind)


def _counts(measure: Measure, kind: pa.DataType) -> bool:
    return measure.kind == "count" or _sums(measure, kind)


def _sums(measure: Measure, kind: pa.DataType) -> bool:
    return measure.kind in ("sum", "avg") and is_exact(kind)


def _keeps(measure: Measure, kind: pa.DataType) -> bool:
    return not _counts(measure, kind)


def _counter(column: str) -> str:
    return f"_count {column}"


def _sum(column: str) -> str:
    return f"_sum {column}"


def _values(column: str) -> str:
    return f"values {column}"


def _shown(expressions: Iterable[tuple[Measure, str]]) -> str:
    shown = (f"{it.kind}({expression or it.of or '*'})" for it, expression in expressions)
    return ", ".join(shown) or "distinct"


def aggregate(
    frame: DataFrame,
    *,
    key: str | Column | Sequence[str | Column],
    buckets: int = 16,
    **aggregates: Given,
) -> DataFrame:
    """The groups of rows that come and go, with `_weight`; see the head of this module.

    An aggregate is one call: `spent="sum(price * quantity)"`, `n="count(*)"`. Compute with results
    behind it. Raises `ConfigError` before anything runs.
    """
    if not aggregates:
        raise ConfigError('name the results: aggregate(frame, key="user", n="count(*)")')
    found = parse_aggregates(aggregates, KINDS, aggregate)
    frame, keys = _named_keys(with_weights(frame, buckets), key)
    for name in found:
        if name in keys or name == WEIGHT:
            raise ConfigError(f"the result would have two columns {name}: rename one")
    measures, arguments = _measures(frame, found)
    selected = frame.select(
        *map(as_column, keys), *(it.alias(name) for name, it in arguments.items()), WEIGHT
    )
    return _run(selected, keys, measures, buckets)


def _measures(
    frame: DataFrame, aggregates: Mapping[str, Aggregate]
) -> tuple[list[Measure], dict[str, Column]]:
    """The measures, and their arguments by the name of a column: one for each expression."""
    from pyspark.sql.functions import expr

    arguments: dict[str, Column] = {}
    places: dict[str, str] = {}
    measures = []
    for name, it in aggregates.items():
        if it.of is None:
            measures.append(Measure(name, it.kind, None))
            continue
        text = expression_of(frame, it.of).text
        place = places.setdefault(text, f"_{len(places)}")
        arguments[place] = expr(it.of) if isinstance(it.of, str) else it.of
        measures.append(Measure(name, it.kind, place, text, str(it.of)))
    # Earlier versions had a column for each way of writing an expression: if there are several,
    # their state has other columns, and is refused.
    if len({it.earlier for it in measures if it.of}) != len(places):
        measures = [it._replace(earlier=it.expression) for it in measures]
    return measures, arguments


def distinct(
    frame: DataFrame,
    *,
    key: str | Column | Sequence[str | Column] = (),
    buckets: int = 16,
) -> DataFrame:
    """The distinct rows, or the distinct values of some columns, with `_weight`: a row is there as
    long as at least one of its equals is."""
    frame = with_weights(frame, buckets)
    every = [name for name in frame.columns if name != WEIGHT]
    frame, keys = _named_keys(frame, key or every)
    return _run(frame, keys, [], buckets)


def _named_keys(
    frame: DataFrame, key: str | Column | Sequence[str | Column]
) -> tuple[DataFrame, list[str]]:
    keys = []
    for it in listed(key):
        frame, name = name_column(frame, it)
        keys.append(name)
    if not keys:
        raise ConfigError('name the columns of the group: key="user"')
    return frame, keys


def _run(
    frame: DataFrame, keys: Sequence[str], measures: Sequence[Measure], buckets: int
) -> DataFrame:
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    operator = Grouped(arrow_schema(frame.schema), keys, measures)
    return run_operator(operator, {_INPUT: frame}, buckets)
