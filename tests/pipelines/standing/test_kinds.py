"""Columns as numbers, and literals beside them."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.pipelines.standing.kinds import (
    Decimals,
    LiteralError,
    kind_of,
    numbers_of,
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
        (("integer", "=", "9007199254740993.0", "number"), 2**53 + 1),
        (("integer", "<", "9007199254740992.5", "number"), 2**53 + 1),
        ((Decimals(9, 2), "=", "19.990", "number"), 1999),
        ((Decimals(9, 2), "<", "0.305", "number"), 31),
        ((Decimals(9, 2), "<=", "-0.305", "number"), -31),
        ((Decimals(9, 2), ">", "1e-999999", "number"), 0),
        ((Decimals(9, 2), "<", "1e999999999", "number"), 10**9),
        ((Decimals(9, 2), ">=", "-10000000", "number"), -(10**9)),
        ((Decimals(38, 0), "=", "9" * 38, "number"), 10**38 - 1),
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
        ((Decimals(9, 2), "=", "0.305", "number"), "2 digits after the point: 0.305 is never"),
        ((Decimals(9, 2), "<", "1e99999999999999999999", "number"), "beyond the range of numbers"),
        ((Decimals(9, 2), "<", "1", "string"), "without quotes"),
        (("float", "<", "1e999", "number"), "beyond the range of a double"),
        (("text", "=", "3", "number"), "write '3'"),
        (("boolean", "=", "1", "number"), "TRUE or FALSE"),
        (("time", "<", "noon", "string"), "'noon' is no time"),
        (("time", "<", "2026-01-31 10:00:00.1234567", "string"), "more than 6 digits"),
        (("date", "<", "3", "number"), "the column is a date"),
        (("date", "<", "2026-01-31 10:00:00", "string"), "is no date"),
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
    assert kind_of(pa.list_(pa.string())) is None
    assert kind_of(pa.binary()) is None


def test_decimals_are_numbers_without_their_point() -> None:
    texts = ["-0.01", "19.99", None, "9999999999999999.99"]
    money = pa.array([None if it is None else Decimal(it) for it in texts], pa.decimal128(18, 2))
    numbers = numbers_of(money, Decimals(18, 2))
    assert (numbers.dtype, numbers[[0, 1, 3]].tolist()) == (np.int64, [-1, 1999, 10**18 - 1])
    assert numbers_of(money.slice(1, 1), Decimals(18, 2)).tolist() == [1999]
    large = pa.array([Decimal(2**70), Decimal(-(2**70)), Decimal(-1)], pa.decimal128(38, 0))
    assert numbers_of(large, Decimals(38, 0)).tolist() == [2**70, -(2**70), -1]
    assert numbers_of(large.slice(0, 0), Decimals(38, 0)).tolist() == []
