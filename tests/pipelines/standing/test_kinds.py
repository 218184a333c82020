"""Columns as numbers, and literals beside them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.standing.kinds import (
    LiteralError,
    kind_of,
    numbers_of,
    parse_schema,
    value_of,
)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("integer", "=", "12", "number"), 12),
        (("integer", "<", "2.5", "number"), 3),
        (("integer", ">=", "2.5", "number"), 3),
        (("integer", "<=", "2.5", "number"), 2),
        (("integer", ">", "-2.5", "number"), -3),
        (("integer", "in", "1e2", "number"), 100),
        (("float", "=", "3", "number"), 3.0),
        (("text", "=", "x", "string"), "x"),
        (("boolean", "=", "TRUE", "keyword"), 1),
        (("time", "<", "1970-01-01 00:00:01", "string"), 1_000_000),
        (("time", "<", "1970-01-01T01:00:00+01:00", "string"), 0),
        (("date", "=", "1970-01-03", "string"), 2),
    ],
)
def test_literal_has_the_value_of_its_column(arguments: Any, value: object) -> None:
    assert value_of(*arguments) == value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("integer", "=", "2.5", "number"), "2.5 is never equal"),
        (("integer", "<", "9223372036854775808", "number"), "beyond the range of 64 bits"),
        (("integer", "=", "3", "string"), "without quotes"),
        (("float", "<", "1e999", "number"), "beyond the range of a double"),
        (("text", "=", "3", "number"), "write '3'"),
        (("boolean", "=", "1", "number"), "TRUE or FALSE"),
        (("time", "<", "noon", "string"), "'noon' is no time"),
        (("date", "<", "3", "number"), "the column is a date"),
    ],
)
def test_literal_that_does_not_fit_is_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(LiteralError, match=problem):
        value_of(*arguments)


def test_numbers_of_columns_compare_as_in_spark() -> None:
    floats = numbers_of(pa.array([1.5, math.nan, None]), "float")
    assert floats[:2].tolist() == [1.5, math.inf]
    assert numbers_of(pa.array([True, False]), "boolean").tolist() == [1, 0]
    times = pa.array([7], pa.timestamp("ms", "UTC"))
    assert numbers_of(times, "time").tolist() == [7000]
    assert numbers_of(pa.array([3], pa.date32()), "date").tolist() == [3]
    assert numbers_of(pa.array([3], pa.int8()), "integer").tolist() == [3]


def test_types_that_queries_cannot_use_have_no_kind() -> None:
    assert kind_of(pa.decimal128(9, 2)) is None
    assert kind_of(pa.list_(pa.string())) is None
    assert kind_of(pa.binary()) is None


def test_schema_is_names_and_types() -> None:
    found = parse_schema("a string, `b` BIGINT, c: timestamp")
    assert found.names == ["a", "b", "c"]
    assert [kind_of(it.type) for it in found] == ["text", "integer", "time"]
    with pytest.raises(ConfigError, match="'d' is no column"):
        parse_schema("a string, d")
