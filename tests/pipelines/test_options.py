"""The user's options: how they are looked up and checked."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.options import GivenOptions, refuse_unknown


def test_options_are_found_regardless_of_case() -> None:
    given = GivenOptions({"STARTINGoffsets": "latest", "Flag": "TRUE", "count": "3"})
    assert given.get("startingOffsets") == "latest"
    assert given.boolean("flag", False) is True
    assert given.integer("Count", 1) == 3
    assert given.one_of("startingOffsets", ("latest", "earliest"), "earliest") == "latest"


def test_options_that_are_not_given_have_their_defaults() -> None:
    given = GivenOptions({})
    assert given.boolean("flag", True) is True
    assert given.integer("count", 1) is None
    assert given.duration_ms("delay") is None
    assert given.one_of("level", ("low", "high"), "high") == "high"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("15m", 900_000), ("30 seconds", 30_000), ("500ms", 500), ("2h", 7_200_000), ("7", 7)],
)
def test_durations_are_read_as_people_write_them(text: str, milliseconds: int) -> None:
    assert GivenOptions({"delay": text}).duration_ms("delay") == milliseconds


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("soon", "delay 'soon' is no duration: write it like"),
        ("3 fortnights", "'fortnights' is no unit of time"),
    ],
)
def test_durations_that_are_none_are_refused(value: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        GivenOptions({"delay": value}).duration_ms("delay")


def test_values_that_do_not_fit_are_refused_by_name() -> None:
    given = GivenOptions({"count": "0", "flag": "yes", "level": "middle"})
    with pytest.raises(ConfigError, match="count is '0'; it must be a whole number of at least 1"):
        given.integer("count", 1)
    with pytest.raises(ConfigError, match="flag is 'yes'; it must be true or false"):
        given.boolean("flag", False)
    with pytest.raises(ConfigError, match="level is middle; it must be one of low, high"):
        given.one_of("level", ("low", "high"), "low")


def test_unknown_options_are_refused_with_the_nearest_one() -> None:
    refuse_unknown({"Topic": "t", "kafka.sasl.username": "ann"}, ("topic",))
    with pytest.raises(ConfigError, match="option topc is not known; did you mean topic"):
        refuse_unknown({"topc": "t"}, ("topic",))
    with pytest.raises(ConfigError, match=r"offset\.reset has no meaning here; use starting"):
        refuse_unknown({"kafka.auto.offset.reset": "latest"}, ("topic",))
