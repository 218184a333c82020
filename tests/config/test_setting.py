"""Parsing, bounds and formatting of single settings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.setting import (
    Kind,
    Setting,
    Synonym,
    boolean,
    integer,
    long,
    nearest,
    settings_of,
    string,
    strings,
    text_of,
)
from millstream.errors import ConfigError


@dataclass(frozen=True)
class Family:
    some_number: int = integer(7, low=1, high=9, also=(-1,), doc="A number.")
    some_time_ms: int | None = long(None, doc="A time.", synonyms=("a.b", ("c.d", 60_000)))
    some_switch: bool = boolean(True, doc="A switch.")
    some_choice: str = string("x", options=("x", "y"), doc="A choice.")
    some_set: frozenset[str] = strings(frozenset({"p"}), options=("p", "q"), doc="A set.")
    some_list: tuple[str, ...] = strings((), doc="A list.")
    not_a_setting: int = 3


SETTINGS = settings_of(Family)


def test_settings_are_named_after_the_fields_with_dots() -> None:
    assert list(SETTINGS) == [
        "some.choice",
        "some.list",
        "some.number",
        "some.set",
        "some.switch",
        "some.time.ms",
    ]


def test_synonyms_carry_their_scale() -> None:
    assert SETTINGS["some.time.ms"].synonyms == (Synonym("a.b"), Synonym("c.d", 60_000))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("some.number", " 9 ", 9),
        ("some.number", "-1", -1),
        ("some.switch", "FALSE", False),
        ("some.choice", "y", "y"),
        ("some.set", "q, p", frozenset({"p", "q"})),
        ("some.set", "", frozenset()),
        ("some.list", "a, b", ("a", "b")),
        ("some.list", "", ()),
        ("some.time.ms", str(2**63 - 1), 2**63 - 1),
    ],
)
def test_setting_parses_what_fits(name: str, text: str, value: object) -> None:
    assert SETTINGS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "some.number",
            "0",
            "Invalid value 0 for configuration some.number: Value must be at least 1",
        ),
        ("some.number", "10", "Value must be no more than 9"),
        ("some.number", "ten", "Not a number of type INT"),
        ("some.number", str(2**31), "Not a number of type INT"),
        ("some.time.ms", str(2**63), "Not a number of type LONG"),
        ("some.switch", "yes", "Expected value to be either true or false"),
        ("some.choice", "z", "String must be one of: x, y"),
        ("some.set", "p,z", "String must be one of: p, q"),
    ],
)
def test_setting_refuses_what_does_not_fit(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SETTINGS[name].parse(text)


def test_password_is_not_repeated_in_a_refusal() -> None:
    secret = Setting(Kind.PASSWORD, None, "Secret.", name="s", options=("only",))
    with pytest.raises(ConfigError) as caught:
        secret.parse("hunter2")
    assert "hunter2" not in str(caught.value)


@given(st.integers(-(2**63), 2**63 - 1))
def test_long_survives_formatting_and_parsing(value: int) -> None:
    setting = SETTINGS["some.time.ms"]
    text = setting.format(value)
    assert text is not None
    assert setting.parse(text) == value


def test_text_of_writes_python_values_as_settings() -> None:
    assert [text_of(value) for value in (True, 3, 0.5, ["a", "b"], "x")] == [
        "true",
        "3",
        "0.5",
        "a,b",
        "x",
    ]


def test_nearest_suggests_only_what_is_near() -> None:
    assert nearest("some.numbr", SETTINGS) == " Did you mean 'some.number'?"
    assert nearest("zookeeper", SETTINGS) == ""
