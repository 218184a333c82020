"""Standard deviations against fractions, which lose nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.windows.moments import squares, two_product, two_sum
from millstream.pipelines.windows.ranges import aggregate

DOUBLES = st.floats(-1e100, 1e100, allow_subnormal=False).filter(
    lambda it: it == 0 or abs(it) > 1e-100
)


@given(DOUBLES, DOUBLES)
def test_pairs_lose_nothing(a: float, b: float) -> None:
    for pair, exact in (
        (two_sum(np.array([a]), np.array([b])), Fraction(a) + Fraction(b)),
        (two_product(np.array([a]), np.array([b])), Fraction(a) * Fraction(b)),
    ):
        high, low = (float(it[0]) for it in pair)
        assert Fraction(high) + Fraction(low) == exact
    assert sum(map(Fraction, squares(np.array([a])).tolist())) == Fraction(a) ** 2


def exact_deviation(values: list[float]) -> float:
    numbers = [Fraction(it) for it in values]
    mean = sum(numbers) / len(numbers)
    return math.sqrt(sum((it - mean) ** 2 for it in numbers) / (len(numbers) - 1))


@pytest.mark.parametrize("offset", [0.0, 1.7e9, -1e10])
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12))
def test_deviations_survive_large_offsets(offset: float, steps: list[int]) -> None:
    values = [offset + it / 8 for it in steps]
    found = deviation(values)
    assert found == pytest.approx(exact_deviation(values), rel=1e-7, abs=1e-300)


def deviation(values: list[Any], begin: int = 0) -> float | None:
    column = pa.array(values, pa.float64())
    result = aggregate("stddev", column, np.array([begin]), np.array([len(values)]))
    found: float | None = result.to_pylist()[0]
    return found


def test_deviation_needs_two_values_and_finite_ones() -> None:
    assert deviation([]) is None
    assert deviation([1.0, None]) is None
    assert deviation([1.0, None, 1.0]) == 0.0
    assert math.isnan(deviation([1.0, math.inf, 2.0]) or 0.0)
    assert deviation([math.inf, 1.0, 2.0], begin=1) == pytest.approx(math.sqrt(0.5))
    assert math.isnan(deviation([1e200, 2e200]) or 0.0), "their squares leave the doubles"
