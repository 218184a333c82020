"""The aggregates of an operator, as plain data that is sent to workers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.plans import Expression, analyzed_expression
from millstream.pipelines.windows.aggregates import Aggregate
from millstream.pipelines.windows.ranges import result_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

READABLE_MAX = 40
_NO_WORD = re.compile(r"\W+")


class Measure(NamedTuple):
    """An aggregate of a column of the input; without a column, of the rows."""

    name: str
    kind: str
    column: str | None
    fraction: float = 0.5
    earlier: str | None = None  # the name that earlier versions gave the column

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of its result; raises `TypeError` if the column cannot be aggregated."""
        of = pa.int64() if self.column is None else schema.field(self.column).type
        return result_type(self.kind, of)


def measured_columns(
    frame: DataFrame, aggregates: Mapping[str, Aggregate], known: Sequence[str] = ()
) -> tuple[list[Measure], list[Column]]:
    """The measures, and the columns that must be added to rows of the frame for them: one for each
    expression that is not a column in `known`."""
    from pyspark.sql.functions import expr

    measures: list[Measure] = []
    columns: dict[str, Column] = {}
    for name, it in aggregates.items():
        column, earlier = None, None
        if it.of is not None:
            of = expr(it.of) if isinstance(it.of, str) else it.of
            found = expression_of(frame, it.of)
            if found.column in known:
                column = found.column
            else:
                column, earlier = measured_name(found.text), measured_name(str(it.of))
                columns[column] = of.alias(column)
        measures.append(Measure(name, it.kind, column, it.fraction, earlier))
    return measures, list(columns.values())


def expression_of(frame: DataFrame, of: str | Column) -> Expression:
    """The expression that is aggregated. Of a stream, state is named by it, so it is the same
    however it was written: as text, or as a Column, which PySpark prints in its own way."""
    from pyspark.sql.functions import expr

    if frame.isStreaming:
        return analyzed_expression(frame, expr(of) if isinstance(of, str) else of)
    text = str(of)  # sessions of Spark Connect have no analyzed plan here
    return Expression(text, text if isinstance(of, str) and of in frame.columns else None)


def measured_name(text: str) -> str:
    """The column of an expression. State stores it by this name, so that a pipeline whose
    expression has changed does not add up values of both. Earlier versions made it of the text or
    the printed Column, as the user wrote it."""
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"_measured_{_NO_WORD.sub('_', text)[:READABLE_MAX]}_{digest}"


def add_measured(
    frame: DataFrame, aggregates: Mapping[str, Aggregate]
) -> tuple[DataFrame, list[Measure]]:
    """The frame with a column for each expression that is aggregated, if it has none yet."""
    measures, columns = measured_columns(frame, aggregates, frame.columns)
    return (frame.select("*", *columns) if columns else frame), measures


def check_measures(
    measures: Sequence[Measure], schema: pa.Schema, taken: Sequence[str] = ()
) -> None:
    """Raise `ConfigError` if the name of a result is taken, or if it has no type."""
    for it in measures:
        if it.name in taken:
            raise ConfigError(f"there is a column {it.name} already: choose another name")
        try:
            it.type_in(schema)
        except TypeError as error:
            raise ConfigError(
                f"{it.name}: there is no {error}; cast it to a number, like double"
            ) from None
