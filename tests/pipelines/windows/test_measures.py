"""Aggregates as plain data: what they give, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.windows.aggregates import parse_aggregates
from millstream.pipelines.windows.measures import Measure, add_measured, check_measures

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


def test_column_of_an_expression_is_named_by_its_result_wherever_it_stands(
    spark: SparkSession,
) -> None:
    """State that was kept of two expressions must not change places with them."""
    frame = spark.createDataFrame([("ann", 1)], "user string, amount int")
    given = {"twice": "sum(amount * 2)", "n": "count(*)", "half": "sum(amount / 2)"}
    for order in (given, dict(reversed(given.items()))):
        measured, measures = add_measured(frame, parse_aggregates(order))
        assert set(measured.columns) == {"user", "amount", "_measured_twice", "_measured_half"}
        assert {it.name: it.column for it in measures} == {
            "twice": "_measured_twice",
            "n": None,
            "half": "_measured_half",
        }
