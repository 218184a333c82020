"""Sums and averages of decimals: those of Python's own decimals, to the last digit."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.windows.decimal_sums import (
    average_type,
    decimal_averages,
    decimal_totals,
    sum_type,
)

MONEY = pa.decimal128(28, 3)
UNITS = st.integers(-(10**28) + 1, 10**28 - 1)
EXACT = Context(prec=100)


@given(st.lists(UNITS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_every_range_has_the_sum_and_average_of_python(units: list[int], rng: object) -> None:
    amounts = [Decimal(it).scaleb(-3, EXACT) for it in units]
    values = pa.array([Decimal(0), *amounts], MONEY).slice(1)  # buffers have an offset
    ranges = [(a, b) for a in range(len(units)) for b in range(a + 1, len(units) + 1)]
    first, end = (np.array(it) for it in zip(*ranges, strict=True))
    sums = decimal_totals(values, first, end)
    expected = [sum(units[a:b]) for a, b in ranges]
    assert [int(it.scaleb(3, EXACT)) for it in sums.to_pylist()] == expected
    means = decimal_averages(sums, end - first, pa.decimal128(38, 7))
    for mean, total, (a, b) in zip(means.to_pylist(), expected, ranges, strict=True):
        exact = EXACT.divide(Decimal(total).scaleb(-3, EXACT), Decimal(b - a))
        assert mean == exact.quantize(Decimal("1e-7"), ROUND_HALF_UP, EXACT)


def test_types_are_those_of_spark() -> None:
    assert sum_type(pa.decimal128(10, 2)) == pa.decimal128(20, 2)
    assert sum_type(pa.decimal128(38, 2)) == pa.decimal128(38, 2)
    assert average_type(pa.decimal128(10, 2)) == pa.decimal128(14, 6)
    assert average_type(pa.decimal128(38, 36)) == pa.decimal128(38, 38)


def test_sum_with_too_many_digits_is_refused() -> None:
    largest = Decimal(10**38 - 1)
    values = pa.array([largest] * 3, pa.decimal128(38, 0))
    assert decimal_totals(values, np.array([0]), np.array([1])).to_pylist() == [largest]
    for count in (2, 3):
        with pytest.raises(OverflowError, match="cast the column to double"):
            decimal_totals(values, np.array([0]), np.array([count]))


def test_no_values_have_no_sums() -> None:
    none = np.zeros(0, np.int64)
    assert len(decimal_totals(pa.array([], MONEY), none, none)) == 0
