"""Sums and averages of groups, and the types of results."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.views.sums import (
    averages_of,
    float_sums,
    greatest_and_least,
    result_type,
    sums_by,
)


def test_types_are_those_of_spark() -> None:
    price = pa.decimal128(10, 2)
    assert result_type("sum", price) == pa.decimal128(20, 2)
    assert result_type("avg", price) == pa.decimal128(14, 6)
    assert result_type("sum", pa.int32()) == pa.int64()
    assert result_type("avg", pa.int32()) == pa.float64()
    assert result_type("max", pa.string()) == pa.string()
    with pytest.raises(ConfigError, match="cast it to a number"):
        result_type("sum", pa.string())


def test_weighted_sums_of_decimals_are_exact() -> None:
    values = pa.array([Decimal("0.10"), None, Decimal("-99999999999999999999.99")])
    sums = sums_by(values, np.array([3, 1, -2]), np.array([0, 0, 1]), 2)
    assert sums.to_pylist() == [Decimal("0.30"), Decimal("199999999999999999999.98")]


def test_averages_without_values_are_null() -> None:
    sums = pa.array([Decimal("1.00"), Decimal("0.00")], pa.decimal128(38, 2))
    found = averages_of(sums, np.array([3, 0]), "avg", pa.decimal128(14, 6))
    assert found.to_pylist() == [Decimal("0.333333"), None]


def test_sums_of_doubles_depend_on_the_values_alone() -> None:
    values = [0.1, 1e17, 0.2, -1e17]
    orders = ([0, 1, 2, 3], [3, 2, 1, 0])
    found = {
        float_sums(
            pa.array([values[it] for it in order]), np.ones(4, np.int64), np.zeros(4, int), 1, "sum"
        )[0].as_py()
        for order in orders
    }
    assert len(found) == 1


def test_nan_is_greatest() -> None:
    greatest, least = greatest_and_least(
        pa.array([1.0, float("nan"), -2.0]), np.array([0, 0, 2]), 3
    )
    assert str(greatest.to_pylist()) == "[nan, None, -2.0]"
    assert least.to_pylist() == [1.0, None, -2.0]
