"""The first rows of each group, kept up to date while rows come and go.

    totals.transform(top, 10, by="spent")                      the ten greatest
    totals.transform(top, 3, by="spent", group="country")      three of each country
    stock.transform(top, 5, by="left", smallest=True)

Every row also has its `rank`, from 1. A row that overtakes others removes and adds their rows, with
the old and the new rank. Of rows with the same value, the one with the smaller other columns comes
first, in the order of the columns, so that a replay ranks them the same. Nulls are last.

All rows of a group are stored, because any of them may be among the first when others leave, and a
batch reads those of the groups that it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.columns import kind_of, listed, name_column
from millstream.pipelines.joins.matching import is_last
from millstream.pipelines.joins.weights import WEIGHT, consolidate, weighted, weights_of
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, key_codes, key_hashes
from millstream.pipelines.state.keys import distinct as distinct_values
from millstream.pipelines.state.tables import concat, expand
from millstream.pipelines.views.weights import with_weights

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANK = "rank"
K_MAX = 100_000
_INPUT, _ROWS = "rows", "rows"


class TopRows(Operator):
    """The operator: pure, on columns."""

    def __init__(
        self, schema: pa.Schema, groups: Sequence[str], by: str, k: int, *, smallest: bool = False
    ) -> None:
        order = "smallest" if smallest else "greatest"
        self.identity = f"the {k} {order} by {by} of {', '.join(groups) or 'all rows'}"
        self.inputs = {_INPUT: InputSpec(schema, tuple(groups))}
        self.tables = {_ROWS: StateTableSpec(schema, tuple(groups), None, by_key=True)}
        names = [it for it in schema.names if it != WEIGHT]
        fields = [schema.field(name) for name in names]
        self._out = pa.schema([*fields, pa.field(RANK, pa.int64())])
        self.schema_out = pa.schema([*self._out, schema.field(WEIGHT)])
        self._groups = tuple(groups)
        self._by = by
        self._k = k
        self._smallest = smallest
        self._others = [
            it.name for it in fields if it.name != by and not pa.types.is_nested(it.type)
        ]

    def kept(self) -> Mapping[str, str]:
        return {_ROWS: "all rows"}

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        new = rows[_INPUT]
        hashes = distinct_values(new.column(HASH).to_numpy())
        old = consolidate(state[_ROWS].select(hashes=hashes))
        both = consolidate(concat([old, new]))
        state[_ROWS].append(new)
        state.keyed(_ROWS).merge(lambda rows, _: consolidate(rows))
        before, after = self._first(old), self._first(both)
        return consolidate(concat([self.nothing, weighted(before, -1), weighted(after, 1)]))

    def _first(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The first rows of each group, with their ranks; a row of weight 2 has two of them."""
        rows = rows.filter(pa.array(weights_of(rows) > 0))
        codes = key_codes(rows, self._groups)
        order = self._order(rows, codes)
        weights = np.minimum(weights_of(rows)[order], self._k)
        ends = np.cumsum(weights)
        last = is_last(codes[order])
        lengths = np.diff(np.concatenate([[0], np.flatnonzero(last) + 1]))
        sums = np.concatenate([[0], ends[last][:-1]]) if len(ends) else ends
        ranks = ends - weights - np.repeat(sums, lengths)
        wanted = np.clip(self._k - ranks, 0, weights)
        chosen = order[np.repeat(np.arange(len(order)), wanted)]
        names = self._out.names[:-1]
        taken = rows.select(names).take(pa.array(chosen))
        return pa.RecordBatch.from_arrays(
            [*taken.columns, pa.array(expand(ranks + 1, wanted))], schema=self._out
        )

    def _order(self, rows: pa.RecordBatch, codes: Numbers) -> Numbers:
        """By group, then by the value, then by the other columns."""
        columns = {"code": pa.array(codes), "value": rows.column(self._by)}
        columns |= {f"c{place}": rows.column(it) for place, it in enumerate(self._others)}
        names = [it for it in self._out.names[:-1] if it not in self._others]
        content = key_hashes([rows.column(name) for name in names], rows.num_rows)
        columns["content"] = pa.array(content)
        direction = {"value": "ascending" if self._smallest else "descending"}
        keys = [(name, direction.get(name, "ascending")) for name in columns]
        found: Numbers = pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy()
        return found.astype(np.int64)


def top(
    frame: DataFrame,
    k: int,
    *,
    by: str | Column,
    group: str | Column | Sequence[str | Column] = (),
    smallest: bool = False,
    buckets: int = 16,
) -> DataFrame:
    """The `k` greatest (or smallest) rows of each group, with `rank` and `_weight`; see the head of
    this module. Raises `ConfigError` before anything runs."""
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= K_MAX:
        raise ConfigError(f"k={k!r}: it must be an integer between 1 and {K_MAX}")
    frame = with_weights(frame, buckets)
    frame, value = name_column(frame, by)
    groups = []
    for it in listed(group):
        frame, name = name_column(frame, it)
        groups.append(name)
    if RANK in frame.columns:
        raise ConfigError(
            f"there is a column {RANK}, and the result has one of its own: rename it with "
            f'withColumnRenamed("{RANK}", ...)'
        )
    kind = kind_of(frame, value)
    if kind.startswith(("array", "struct")):
        raise ConfigError(f"by is {value}, which is {kind}: rank rows by a number, a time or text")
    ordered = frame.select(*(it for it in frame.columns if it != WEIGHT), WEIGHT)
    operator = TopRows(arrow_schema(ordered.schema), groups, value, k, smallest=smallest)
    return run_operator(operator, {_INPUT: ordered}, buckets)
