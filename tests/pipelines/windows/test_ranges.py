"""Aggregates over ranges, against a loop over each range."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.pipelines.windows import ranges
from millstream.pipelines.windows.ranges import (
    aggregate,
    halved_ranks,
    narrow,
    result_type,
    sort_rows,
    sorted_ranks,
    totals,
    window_bounds,
)

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-30, 30)), max_size=30).map(sorted)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


def arrays(rows: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([it[0] for it in rows], np.int64), np.array([it[1] for it in rows], np.int64)


def as_double(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@st.composite
def some_ranges(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[Any], Any, Any]:
    column = draw(st.lists(values, min_size=1, max_size=20))
    places = st.integers(0, len(column))
    pairs = draw(st.lists(st.tuples(places, places).map(sorted), min_size=1, max_size=10))
    return column, np.array([it[0] for it in pairs]), np.array([it[1] for it in pairs])


@given(ROWS, st.integers(1, 40), st.booleans(), st.booleans())
def test_window_reaches_back_by_the_interval_and_no_further(
    rows: list[tuple[int, int]], interval_us: int, by_code: bool, preceding: bool
) -> None:
    codes, times = arrays(rows)
    if by_code:
        first, end = ranges._bounds_by_code(codes, times, interval_us, preceding)
    else:
        first, end = window_bounds(codes, times, interval_us, preceding=preceding)
    for row, (code, time_us) in enumerate(rows):
        window = [
            i
            for i, (other, other_us) in enumerate(rows)
            if other == code and time_us - interval_us <= other_us <= time_us - preceding
        ]
        assert list(range(first[row], end[row])) == window


def test_longest_interval_and_farthest_times_do_not_overflow() -> None:
    codes = np.repeat(np.arange(50), 2)
    times = np.tile([-(2**61), 2**61], 50)
    first, end = window_bounds(codes, times, 2**60)
    assert list(end - first) == [1] * 100
    assert list(sort_rows(codes, times)) == list(range(100))


@given(ROWS)
def test_rows_are_sorted_by_code_and_time(rows: list[tuple[int, int]]) -> None:
    codes, times = arrays(rows[::-1])
    order = sort_rows(codes, times)
    assert list(zip(codes[order], times[order], strict=True)) == rows


@given(some_ranges(st.none() | DOUBLES))
def test_aggregates_of_doubles(drawn: tuple[list[float | None], Any, Any]) -> None:
    column, first, end = drawn
    values = pa.array(column, pa.float64())
    found = {
        kind: aggregate(kind, values, first, end).to_pylist()
        for kind in ("count", "sum", "avg", "min", "max", "collect")
    }
    for row, (begin, stop) in enumerate(zip(first, end, strict=True)):
        window = [it for it in column[begin:stop] if it is not None]
        assert found["count"][row] == len(window)
        assert found["collect"][row] == window
        if not window:
            assert {found[kind][row] for kind in ("sum", "avg", "min", "max")} == {None}
            continue
        assert (found["min"][row], found["max"][row]) == (min(window), max(window))
        exact = as_double(sum(map(Fraction, window), Fraction()))
        neighbours = {math.nextafter(exact, side) for side in (-math.inf, math.inf)}
        assert found["sum"][row] in {exact, *neighbours}
        assert found["avg"][row] == found["sum"][row] / len(window)


@given(some_ranges(DOUBLES), st.lists(DOUBLES, max_size=5))
def test_sum_of_doubles_is_the_same_whatever_surrounds_it(
    drawn: tuple[list[float], Any, Any], before: list[float]
) -> None:
    column, first, end = drawn
    alone = totals(np.array(column), first, end)
    among = totals(np.array(before + column), first + len(before), end + len(before))
    assert alone.tobytes() == among.tobytes()


def test_sum_of_a_range_is_not_spoilt_by_the_largest_doubles_beside_it() -> None:
    """Its borrow would run through all limbs up to theirs, beyond what a double can be."""
    column = np.array([-5.0, sys.float_info.max, -6.0, -sys.float_info.max])
    places = np.arange(4)
    assert list(totals(column, places, places + 1)) == list(column)


def test_sum_that_leaves_the_doubles_is_infinite_as_a_plain_one() -> None:
    column = np.array([1.7e308, 1.7e308, -1.7e308, -1.7e308, -1.7e308])
    found = totals(column, np.array([0, 0, 2, 0]), np.array([2, 3, 5, 5]))
    assert list(found) == [math.inf, 1.7e308, -math.inf, -1.7e308]


@given(some_ranges(st.integers(-(2**40), 2**40)))
def test_sum_of_whole_numbers(drawn: tuple[list[int], Any, Any]) -> None:
    column, first, end = drawn
    expected = [sum(column[a:b]) for a, b in zip(first, end, strict=True)]
    assert list(totals(np.array(column), first, end)) == expected


def test_sum_that_leaves_64_bits_is_no_number() -> None:
    column = np.array([2**62, 2**62, -(2**62)])
    assert list(totals(column, np.array([0]), np.array([1]))) == [2**62]
    with pytest.raises(OverflowError, match="cast the column to double"):
        totals(column, np.array([0]), np.array([2]))


@example(([2**62, 2**62, 2**53 + 1], np.array([0, 0, 2]), np.array([2, 3, 3])))
@given(some_ranges(st.integers(-(2**63), 2**63 - 1)))
def test_average_of_whole_numbers_has_no_bound(drawn: tuple[list[int], Any, Any]) -> None:
    """As Spark's, which sums them as doubles."""
    column, first, end = drawn
    found = aggregate("avg", pa.array(column, pa.int64()), first, end).to_pylist()
    for row, (begin, stop) in enumerate(zip(first, end, strict=True)):
        window = column[begin:stop]
        expected = float(sum(window)) / len(window) if window else None
        assert found[row] == expected


def test_infinity_and_nan_are_summed_and_ordered_as_spark_does() -> None:
    values = pa.array([1.0, math.inf, 2.0, -math.inf, math.nan, 3.0])
    first, end = np.array([0, 0, 1, 2, 4, 5]), np.array([1, 2, 4, 4, 6, 6])
    sums = aggregate("sum", values, first, end).to_pylist()
    assert sums[:2] == [1.0, math.inf]
    assert math.isnan(sums[2])
    assert sums[3] == -math.inf
    assert math.isnan(sums[4])
    assert sums[5] == 3.0
    assert math.isnan(aggregate("max", values, first, end).to_pylist()[4])
    assert aggregate("min", values, first, end).to_pylist()[4] == 3.0


@given(some_ranges(st.integers(0, 9)), st.floats(0, 1))
def test_percentile_is_that_of_numpy(drawn: tuple[list[int], Any, Any], fraction: float) -> None:
    column, first, end = drawn
    found = aggregate("percentile", pa.array(column), first, end, fraction).to_pylist()
    for row, (begin, stop) in enumerate(zip(first, end, strict=True)):
        window = column[begin:stop]
        expected = float(np.percentile(window, fraction * 100)) if window else None
        assert found[row] == (expected if expected is None else pytest.approx(expected, abs=1e-9))


@given(some_ranges(st.integers(0, 9)), st.floats(0, 1))
def test_both_ways_to_a_rank_agree(drawn: tuple[list[int], Any, Any], fraction: float) -> None:
    column, first, end = drawn
    first, end = first[end > first], end[end > first]
    places = [np.floor((end - first - 1) * fraction)]
    ranks = np.array(column)
    expected = [
        sorted(column[a:b])[int(place)] for a, b, place in zip(first, end, places[0], strict=True)
    ]
    assert list(sorted_ranks(ranks, first, end, places)[0]) == expected
    assert list(halved_ranks(ranks, first, end, places)[0]) == expected


def test_ranges_are_narrowed_to_members() -> None:
    is_member = np.array([True, False, True, True])
    first, end = narrow(is_member, np.array([0, 1, 1]), np.array([4, 2, 3]))
    assert list(zip(first, end, strict=True)) == [(0, 3), (1, 1), (1, 2)]


def test_types_are_those_of_spark() -> None:
    assert result_type("sum", pa.int32()) == pa.int64()
    assert result_type("sum", pa.float32()) == pa.float64()
    assert result_type("avg", pa.int32()) == pa.float64()
    assert result_type("max", pa.int32()) == pa.int32()
    assert result_type("count", pa.string()) == pa.int64()
    with pytest.raises(TypeError, match="sum of string"):
        result_type("sum", pa.string())
