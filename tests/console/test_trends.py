"""Where the lag of a group goes."""

from __future__ import annotations

import time

import pytest

from millstream.client.cluster import Cluster
from millstream.console.sampler import Sampler
from millstream.console.samples import LAG
from millstream.console.trends import direction_of, lag_trend, trend_of


@pytest.mark.parametrize(
    ("values", "direction"),
    [
        ([0, 0, 10, 20, 30, 40], "growing"),
        ([40, 30, 20, 5, 0, 0], "shrinking"),
        ([100, 101, 99, 100, 100, 101], "steady"),
        ([0, 0, 0], "steady"),
        ([5], "steady"),
    ],
)
def test_direction_is_that_of_the_averages(values: list[float], direction: str) -> None:
    assert direction_of(values) == direction


def test_trend_needs_two_samples() -> None:
    assert trend_of([1.0]) is None
    found = trend_of([1.0, 2.0])
    assert found is not None
    assert found.values == (1.0, 2.0)


def test_lag_is_that_of_the_samples() -> None:
    sampler = Sampler(lambda: Cluster("127.0.0.1:1"))
    assert lag_trend(sampler, "billing") is None
    now = time.time()
    for number in range(4):
        sampler.history.add(now - 40 + 10 * number, {(LAG, "billing"): 100.0 * (number + 1)})
    found = lag_trend(sampler, "billing")
    assert found is not None
    assert (found.values, found.direction) == ((100.0, 200.0, 300.0, 400.0), "growing")
