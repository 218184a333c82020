"""Aggregates that can be added up: what is kept of each, and how parts become a result.

    count, sum, min, max    themselves
    avg                     a sum, as a double whatever is summed, and a count

Windows whose results change keep parts instead of rows, as columns of a table. Sums of doubles are
added in the order in which they come, as Spark's own are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.state.keys import HASH, Numbers
from millstream.pipelines.windows.aggregates import Aggregate, parse_aggregate
from millstream.pipelines.windows.ranges import aggregate, result_type

if TYPE_CHECKING:
    from pyspark.sql import Column

KINDS = ("count", "sum", "avg", "min", "max")


class Measure(NamedTuple):
    """An aggregate of a column of the input; without a column, of the rows."""

    name: str
    kind: str
    column: str | None


class Part(NamedTuple):
    """What is kept of an aggregate: a column, how it is made of rows, and how parts are added."""

    name: str
    kind: str
    column: str | None
    adding: str


class Parts:
    """The parts of some aggregates, of rows with this schema."""

    def __init__(self, schema: pa.Schema, measures: Sequence[Measure]) -> None:
        self._measures = tuple(measures)
        self._parts = [part for it in measures for part in _parts_of(it)]
        self.fields = [_field(it, schema) for it in self._parts]
        self.results = [_field(it, schema) for it in measures]
        self.results_type = pa.struct(self.results)
        # For an identity: a sum and a maximum of one name are kept in columns that look the same.
        self.kinds = ", ".join(sorted(f"{it.name}={it.kind}" for it in measures))

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
                count = kept.column(f"_{it.name}_count")
                divisor = pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64())
                values.append(pc.divide(kept.column(f"_{it.name}_sum"), divisor))
            else:
                values.append(kept.column(it.name).cast(field.type))
        return values

    @staticmethod
    def _sum_up(
        rows: pa.RecordBatch,
        order: Numbers,
        first: Numbers,
        end: Numbers,
        wanted: Sequence[tuple[str, str | None]],
    ) -> list[pa.Array]:
        taken = pa.array(order)
        return [
            aggregate(kind, rows.column(column or HASH).take(taken), first, end)
            for kind, column in wanted
        ]


def measured_columns(
    aggregates: Mapping[str, str | Column | Aggregate],
) -> tuple[list[Measure], list[Column]]:
    """What to keep of rows, and the columns that it is made of. Raises `ConfigError`."""
    from pyspark.sql.functions import expr

    measures, columns = [], []
    for name, given in aggregates.items():
        it = _parse(given, name)
        column = None if it.of is None else f"_measured_{name}"
        measures.append(Measure(name, it.kind, column))
        if it.of is not None:
            of = expr(it.of) if isinstance(it.of, str) else it.of
            columns.append(of.alias(f"_measured_{name}"))
    return measures, columns


def check_measures(measures: Sequence[Measure], schema: pa.Schema) -> None:
    """Raises `ConfigError` where there is nothing to compute with."""
    for it in measures:
        try:
            _field(it, schema)
        except TypeError as error:
            raise ConfigError(
                f"{it.name}: there is no {error}; cast it to a number, like double"
            ) from None


def _parse(given: object, name: str) -> Aggregate:
    if not isinstance(given, str | Aggregate):
        raise ConfigError(
            f"{name}: results that change are kept in parts; write {name} as text, like "
            f'"sum(amount)", or Aggregate("sum", column), one of {", ".join(KINDS)}'
        )
    it = parse_aggregate(given, name)
    if it.kind not in KINDS:
        raise ConfigError(
            f"{name}: there is no {it.kind} of results that change, only {', '.join(KINDS)}; with "
            'emit="final", and stragglers dropped or diverted, there is'
        )
    return it


def _parts_of(measure: Measure) -> list[Part]:
    name, kind, column = measure
    if kind == "avg":
        return [
            Part(f"_{name}_sum", "total", column, "sum"),
            Part(f"_{name}_count", "count", column, "sum"),
        ]
    return [Part(name, kind, column, "sum" if kind == "count" else kind)]


def _field(it: Measure | Part, schema: pa.Schema) -> pa.Field:
    of = pa.int64() if it.column is None else schema.field(it.column).type
    return pa.field(it.name, result_type(it.kind, of))
