"""What a reset asks for, as the form and the command line say it."""

from __future__ import annotations

import pytest

from millstream.admin.errors import InvalidArgument
from millstream.admin.reset import Target
from millstream.console.group_resets import TARGETS, parse_target, reset_arguments, value_of


@pytest.mark.parametrize(
    ("kind", "value", "target"),
    [
        ("earliest", "", Target(earliest=True)),
        ("latest", "", Target(latest=True)),
        ("current", "", Target(current=True)),
        ("datetime", "2026-11-17T08:30Z", Target(moment="2026-11-17T08:30Z")),
        ("duration", "2h", Target(span_ago="2h")),
        ("offset", "17", Target(offset=17)),
        ("shift", "-100", Target(shift=-100)),
    ],
)
def test_target_of_the_form(kind: str, value: str, target: Target) -> None:
    assert kind in dict(TARGETS)
    assert parse_target(kind, value) == target


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("offset", "", "the value is missing"),
        ("offset", "²", "not a whole number"),
        ("shift", "9" * 5000, "not a whole number"),
        ("offset", "-1", "not negative"),
        ("elsewhere", "x", "unknown target"),
    ],
)
def test_target_that_makes_no_sense_is_refused(kind: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        parse_target(kind, value)


def test_point_in_time_is_that_of_the_browser() -> None:
    fields = {"value": " 2026-11-17T08:30 ", "zone": "60"}
    assert value_of("datetime", fields) == "2026-11-17T08:30:00.000+01:00"
    assert value_of("offset", fields) == "2026-11-17T08:30"
    assert value_of("datetime", {"value": "nonsense"}) == "nonsense"  # refused where it is used


def test_command_line_does_the_same() -> None:
    target = Target(earliest=True)
    assert reset_arguments("g", ["a", "b:1"], target) == [
        *("group", "reset", "g", "--topic", "a", "--topic", "b:1"),
        *(*target.options(), "--execute"),
    ]
    assert "--all-topics" in reset_arguments("g", [], target)
