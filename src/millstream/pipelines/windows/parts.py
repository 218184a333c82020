"""Aggregates that can be added up: the parts that are kept, and the result of parts.

    count, sum, min, max    themselves
    avg                     a sum, as a double unless decimals are summed, and a count

Windows whose results change keep parts instead of rows, as columns of a table. Sums of doubles are
added in the order of arrival, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.state.keys import HASH, Numbers
from millstream.pipelines.windows.decimal_sums import decimal_averages
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.ranges import aggregate, result_type


class Part(NamedTuple):
    """A column that is kept for an aggregate: how it is computed from rows, and from parts."""

    name: str
    kind: str
    column: str | None
    adding: str
    type: pa.DataType


class Parts:
    """The parts of some aggregates, of rows with this schema."""

    def __init__(self, schema: pa.Schema, measures: Sequence[Measure]) -> None:
        self._measures = tuple(measures)
        self._parts = [part for it in measures for part in _parts_of(it, schema)]
        self.fields = [pa.field(it.name, it.type) for it in self._parts]
        self.results = [pa.field(it.name, it.type_in(schema)) for it in measures]
        self.results_type = pa.struct(self.results)
        # For an identity: a sum and a maximum of one name are kept in columns that look the same,
        # and so are sums of two expressions.
        self.kinds = _kinds((it, it.column) for it in measures)
        self.earlier_kinds = _kinds((it, it.earlier or it.column) for it in measures)

    def of_rows(
        self, rows: pa.RecordBatch, order: Numbers, first: Numbers, end: Numbers
    ) -> list[pa.Array]:
        """The parts of each group of rows, which are ranges of the rows in this order."""
        return self._sum_up(rows, order, first, end, [(it.kind, it.column) for it in self._parts])

    def of_parts(
        self, kept: pa.RecordBatch, order: Numbers, first: Numbers, end: Numbers
    ) -> list[pa.Array]:
        """The same, of rows that have parts."""
        return self._sum_up(kept, order, first, end, [(it.adding, it.name) for it in self._parts])

    def values(self, kept: pa.RecordBatch) -> list[pa.Array]:
        """The aggregates, of their parts."""
        values = []
        for it, field in zip(self._measures, self.results, strict=True):
            if it.kind == "avg":
                sums, counts = (kept.column(_part_name(it, part)) for part in ("sum", "count"))
                values.append(_average(sums, counts, field.type))
            else:
                values.append(kept.column(it.name).cast(field.type))
        return values

    def _sum_up(
        self,
        rows: pa.RecordBatch,
        order: Numbers,
        first: Numbers,
        end: Numbers,
        wanted: Sequence[tuple[str, str | None]],
    ) -> list[pa.Array]:
        taken = pa.array(order)
        return [
            aggregate(kind, rows.column(column or HASH).take(taken), first, end).cast(part.type)
            for part, (kind, column) in zip(self._parts, wanted, strict=True)
        ]


def _kinds(columns: Iterable[tuple[Measure, str | None]]) -> str:
    return ", ".join(sorted(f"{it.name}={it.kind}({column or '*'})" for it, column in columns))


def _average(sums: pa.Array, counts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Null where the count is 0."""
    if not pa.types.is_decimal128(kind):
        return pc.divide(sums, pc.if_else(pc.equal(counts, 0), None, counts).cast(kind))
    is_known = sums.is_valid()
    found = decimal_averages(sums.drop_null(), counts.filter(is_known).to_numpy(), kind)
    has_value = is_known.to_numpy(zero_copy_only=False)
    return found.take(pa.array(np.cumsum(has_value) - 1, mask=~has_value))


def _part_name(measure: Measure, part: str) -> str:
    return f"_{measure.name}_{part}"


def _parts_of(measure: Measure, schema: pa.Schema) -> list[Part]:
    name, kind, column = measure.name, measure.kind, measure.column
    if kind != "avg":
        adding = "sum" if kind == "count" else kind
        return [Part(name, kind, column, adding, measure.type_in(schema))]
    assert column is not None
    of = schema.field(column).type
    summing = "sum" if pa.types.is_decimal128(of) else "total"
    return [
        Part(_part_name(measure, "sum"), summing, column, "sum", result_type(summing, of)),
        Part(_part_name(measure, "count"), "count", column, "sum", pa.int64()),
    ]
