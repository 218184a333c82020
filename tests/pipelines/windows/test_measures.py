"""Aggregates as plain data: what they give, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.windows.aggregates import parse_aggregates
from millstream.pipelines.windows.measures import (
    Measure,
    add_measured,
    check_measures,
    measured_name,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema({"user": pa.string(), "amount": pa.int32()})


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (Measure("n", "count", None), pa.int64()),
        (Measure("mean", "avg", "amount"), pa.float64()),
        (Measure("most", "max", "amount"), pa.int32()),
    ],
)
def test_measure_has_the_type_of_its_result(measure: Measure, expected: pa.DataType) -> None:
    assert measure.type_in(SCHEMA) == expected
    check_measures([measure], SCHEMA, taken=["user", "amount"])


def test_measure_of_a_taken_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is a column user already"):
        check_measures([Measure("user", "count", None)], SCHEMA, taken=["user"])


def test_measure_of_what_is_no_number_is_refused_with_the_cast() -> None:
    with pytest.raises(ConfigError, match=r"mean: there is no avg.*cast it to a number"):
        check_measures([Measure("mean", "avg", "user")], SCHEMA)


def test_column_of_an_expression_is_named_by_it_wherever_it_stands(spark: SparkSession) -> None:
    """State of one expression must not be taken for that of another."""
    frame = spark.createDataFrame([("ann", 1)], "user string, amount int")
    given = {"twice": "sum(amount * 2)", "n": "count(*)", "half": "sum(amount / 2)"}
    twice, half = measured_name("amount * 2"), measured_name("amount / 2")
    assert twice != half
    for order in (given, dict(reversed(given.items()))):
        measured, measures = add_measured(frame, parse_aggregates(order))
        assert set(measured.columns) == {"user", "amount", twice, half}
        assert {it.name: it.column for it in measures} == {"twice": twice, "n": None, "half": half}


def test_aggregates_of_one_expression_share_a_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("ann", 1)], "user string, amount int")
    given = {"sum": "sum(amount * 2)", "most": "max(amount * 2)"}
    measured, measures = add_measured(frame, parse_aggregates(given))
    assert measured.columns == ["user", "amount", measured_name("amount * 2")]
    assert {it.column for it in measures} == {measured_name("amount * 2")}
