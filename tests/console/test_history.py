"""The history keeps recent samples and averages of minutes, and never grows beyond its bounds."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.console.history import (
    MINUTES_MAX,
    RECENT_MAX,
    History,
    Points,
    thinned,
)

LAG = ("lag", "billing")
RATE = ("records", "")


def filled(samples: int, interval: float = 5.0) -> History:
    history = History()
    for number in range(samples):
        history.add(number * interval, {RATE: number + 1})
    return history


def test_recent_samples_are_kept_as_they_were() -> None:
    history = History()
    history.add(10.0, {RATE: 1.5, LAG: 4})
    history.add(15.0, {RATE: 2.5, LAG: 0})
    assert history.points(RATE) == Points([10.0, 15.0], [1.5, 2.5])
    assert history.points(LAG) == Points([10.0, 15.0], [4, 0])
    assert history.points(RATE, since_seconds=12.0) == Points([15.0], [2.5])
    assert (history.last(RATE), history.last(LAG)) == (2.5, 0)


def test_nothing_is_known_before_the_first_sample() -> None:
    history = History()
    assert history.points(RATE) == Points([], [])
    assert history.last(RATE) is None


def test_key_that_was_always_zero_needs_no_series() -> None:
    history = History()
    history.add(1.0, {LAG: 0, RATE: 1})
    assert history.size == 1
    assert history.points(LAG) == Points([1.0], [0])
    history.add(2.0, {LAG: 3, RATE: 1})
    assert history.points(LAG) == Points([1.0, 2.0], [0, 3])


def test_missing_values_are_gaps() -> None:
    history = History()
    for second, values in enumerate([{LAG: 1.0}, {}, {LAG: 3.0}]):
        history.add(float(second), values)
    assert history.points(LAG).values == [1.0, None, 3.0]
    history.add(3.0, {})
    assert history.last(LAG) is None


def test_older_samples_are_averages_of_minutes() -> None:
    interval = 5.0
    samples = RECENT_MAX + 24  # two minutes more than are kept as they were
    points = filled(samples, interval).points(RATE)
    assert points.times[:2] == [0.0, 60.0]
    assert points.values[:2] == [pytest.approx(6.5), pytest.approx(18.5)]
    assert points.times[2] == (samples - RECENT_MAX) * interval
    assert points.times == sorted(set(points.times))
    assert points.values[-1] == samples


def test_gap_of_hours_leaves_no_false_values() -> None:
    history = filled(3)
    history.add(7200.0, {RATE: 9})
    assert history.points(RATE) == Points([0.0, 5.0, 10.0, 7200.0], [1, 2, 3, 9])


def test_clock_that_is_set_back_adds_nothing() -> None:
    history = filled(3)
    history.add(4.0, {RATE: 100})
    assert history.points(RATE).times == [0.0, 5.0, 10.0]


def test_series_that_was_zero_for_longest_makes_room() -> None:
    history = History(series_max=2)
    history.add(1.0, {("lag", "a"): 1, ("lag", "b"): 1})
    history.add(2.0, {("lag", "a"): 0, ("lag", "b"): 2})
    history.add(3.0, {("lag", "a"): 0, ("lag", "b"): 3, ("lag", "c"): 4})
    assert history.size == 2
    assert history.points(("lag", "b")).values == [1, 2, 3]
    assert history.points(("lag", "c")).values == [0, 0, 4]


def test_memory_is_bounded_after_days() -> None:
    history = filled(5000, interval=60.0)
    assert len(history.points(RATE).times) <= RECENT_MAX + MINUTES_MAX
    series = history._series[RATE]
    assert sys.getsizeof(series.recent) + sys.getsizeof(series.minutes) < 2_500


@given(
    st.lists(st.tuples(st.floats(0.1, 500), st.floats(0, 1e6, width=32)), max_size=80),
)
def test_times_increase_and_values_are_those_that_were_added(
    steps: list[tuple[float, float]],
) -> None:
    history, now, added = History(), 0.0, []
    for step, value in steps:
        now += step
        history.add(now, {RATE: value})
        added.append((now, value))
    points = history.points(RATE)
    assert points.times == sorted(set(points.times))
    assert list(zip(points.times, points.values, strict=True))[-len(added) :] == added


def test_thinned_keeps_peaks() -> None:
    points = Points([float(it) for it in range(100)], [0.0] * 99 + [7.0])
    assert thinned(points, 10) == [0.0] * 9 + [7.0]
    assert thinned(Points([1.0], [2.0]), 10) == [2.0]
    assert thinned(Points([1.0, 2.0], [None, None]), 1) == [None]
