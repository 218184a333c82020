"""The bounds of interval joins, and what is refused; the join itself is Spark's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.joins.interval import Within, reach_us

MINUTE_US = 60_000_000


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        ("10 minutes", (10 * MINUTE_US, 10 * MINUTE_US)),
        (timedelta(minutes=1), (MINUTE_US, MINUTE_US)),
        (("0 seconds", "10 minutes"), (0, 10 * MINUTE_US)),
        (("1 minute", "0 seconds"), (MINUTE_US, 0)),
    ],
)
def test_bound_reaches_both_ways_unless_told(within: Within, expected: tuple[int, int]) -> None:
    assert reach_us(within, "full", unbounded=False) == expected


def test_join_without_a_bound_is_refused_unless_said() -> None:
    with pytest.raises(ConfigError, match='within="10 minutes"'):
        reach_us(None, "inner", unbounded=False)
    assert reach_us(None, "inner", unbounded=True) is None


def test_outer_join_without_a_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a partner"):
        reach_us(None, "left", unbounded=True)


def test_bound_that_is_none_and_given_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave out"):
        reach_us("1 minute", "inner", unbounded=True)


def test_bound_that_is_no_duration_is_refused() -> None:
    with pytest.raises(ConfigError, match="within 'soon'"):
        reach_us(("soon", "1 minute"), "inner", unbounded=False)
