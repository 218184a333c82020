"""Quantiles of what was measured lately; sums and counts of everything."""

from __future__ import annotations

import math

import pytest

from millstream.metrics.distribution import WINDOW_SECONDS, Distribution, Histogram


def test_a_quantile_is_at_most_a_fifth_too_high() -> None:
    measured = Distribution()
    values = [step / 1000 for step in range(1, 1001)]
    for value in values:
        measured.note(value, now=1.0)
    for share, found in zip(
        (0.5, 0.95, 0.99), measured.quantiles((0.5, 0.95, 0.99), 2.0), strict=True
    ):
        assert share <= found <= share * 1.2
    assert measured.count == 1000
    assert measured.sum == pytest.approx(sum(values))


def test_quantiles_forget_what_is_older_than_two_windows_and_sums_do_not() -> None:
    measured = Distribution()
    measured.note(5.0, now=0.0)
    later = WINDOW_SECONDS * 1.5
    measured.note(0.001, now=later)
    assert measured.quantiles((1.0,), later)[0] == pytest.approx(5.0)
    later += WINDOW_SECONDS * 1.2
    measured.note(0.001, now=later)
    assert measured.quantiles((1.0,), later)[0] < 0.002
    assert math.isnan(measured.quantiles((0.5,), later + 10 * WINDOW_SECONDS)[0])
    assert (measured.count, measured.sum) == (3, pytest.approx(5.002))


def test_a_sampled_value_counts_for_those_that_were_skipped() -> None:
    measured = Distribution()
    measured.note(2.0, now=0.0, weight=16)
    measured.note(1.0, now=0.0)
    assert (measured.count, measured.sum) == (17, 33.0)
    assert measured.quantiles((0.5,), 0.0)[0] == pytest.approx(2.0)


def test_values_beyond_all_bounds_are_counted() -> None:
    measured = Distribution((1.0, 2.0))
    measured.note(100.0, now=0.0)
    assert measured.quantiles((0.5,), 0.0) == [100.0]
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 100.0):
        histogram.note(value)
    assert (histogram.counts, histogram.sum) == ([2, 1, 1], 103.0)
