"""What an operator measures: aggregates of columns, as plain data that travels to workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.windows.aggregates import Aggregate
from millstream.pipelines.windows.ranges import result_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Measure(NamedTuple):
    """An aggregate of a column of the input; without a column, of the rows."""

    name: str
    kind: str
    column: str | None
    fraction: float = 0.5

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of its result; raises `TypeError` where there is nothing to compute with."""
        of = pa.int64() if self.column is None else schema.field(self.column).type
        return result_type(self.kind, of)


def add_measured(
    frame: DataFrame, aggregates: Mapping[str, Aggregate]
) -> tuple[DataFrame, list[Measure]]:
    """The frame with a column for each thing that is aggregated, if it has none yet. State keeps it
    under the name of its result, which stays when others come before it."""
    from pyspark.sql.functions import expr

    measures = []
    for name, it in aggregates.items():
        column = it.of if isinstance(it.of, str) and it.of in frame.columns else None
        if it.of is not None and column is None:
            column = f"_measured_{name}"
            frame = frame.withColumn(column, expr(it.of) if isinstance(it.of, str) else it.of)
        measures.append(Measure(name, it.kind, column, it.fraction))
    return frame, measures


def check_measure(schema: pa.Schema, measure: Measure, taken: Sequence[str]) -> None:
    """Raises `ConfigError` if the result has no name of its own, or no type."""
    if measure.name in taken:
        raise ConfigError(f"there is a column {measure.name} already: choose another name")
    try:
        measure.type_in(schema)
    except TypeError as error:
        raise ConfigError(
            f"{measure.name}: there is no {error}; cast it to a number, like double"
        ) from None
