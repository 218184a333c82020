"""Durations, in all the ways people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_text, duration_us

SECOND_US = 1_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 minutes", 600),
        ("1 minute", 60),
        ("1 hour 30 minutes", 5400),
        ("1h30m", 5400),
        ("1.5 seconds", 1.5),
        ("250 ms", 0.25),
        ("7 US", 7e-6),
        ("  2 Days ", 172_800),
        ("1 week", 604_800),
        ("interval 5 seconds", 5),
    ],
)
def test_text_is_read(text: str, seconds: float) -> None:
    assert duration_us(text) == round(seconds * SECOND_US)


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=10_000)))
def test_timedelta_is_taken_exactly(duration: timedelta) -> None:
    assert timedelta(microseconds=duration_us(duration)) == duration


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "gap '' is no duration: write it like \"10 minutes\""),
        ("ten minutes", "gap 'ten minutes' is no duration: write it like"),
        ("10", "gap '10' is no duration"),
        ("10 minutes or so", "gap '10 minutes or so' is no duration"),
        ("-5 seconds", "gap '-5 seconds' is no duration"),
        ("10 parsecs", "'parsecs' is no unit of time"),
        ("1 month", "a month has no fixed length; say how many days"),
        ("0 seconds", "must be longer than 0"),
        ("0.0001 ms", "finer than a microsecond"),
        ("99999999999999 weeks", "too long"),
        (timedelta(seconds=-1), "must be longer than 0"),
        (600, "gap 600 is no duration"),
    ],
)
def test_bad_duration_is_refused_with_an_example(bad: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        duration_us(bad, "gap")
    assert message in str(refused.value)


def test_zero_is_taken_where_it_makes_sense() -> None:
    assert duration_us("0 seconds", zero_allowed=True) == 0


@given(st.integers(1, 2**50))
def test_text_of_a_duration_is_read_as_the_same(length_us: int) -> None:
    assert duration_us(duration_text(length_us)) == length_us


def test_text_of_a_duration_is_as_short_as_people_write_it() -> None:
    assert duration_text(duration_us("90 min")) == "1 hour 30 minutes"
    assert duration_text(1_000_000) == "1 second"
    assert duration_text(0) == "0 seconds"
