"""Log levels as settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from millstream.broker.metadata.loggers import change_levels, logger_levels, logger_setting
from millstream.errors import ApiError, ErrorCode

NAME = "millstream.tests.loggers"


@pytest.fixture(autouse=True)
def _logger() -> Iterator[None]:
    logging.getLogger(NAME).setLevel(logging.INFO)
    yield
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def test_levels_are_told_with_the_names_of_kafka() -> None:
    logging.getLogger(NAME).setLevel(logging.CRITICAL)
    levels = logger_levels()
    assert levels[NAME] == "FATAL"
    assert "root" in levels
    assert all(name == "root" or name.startswith("millstream") for name in levels)


def test_level_is_changed_and_taken_back() -> None:
    change_levels([(NAME, "debug")], validate_only=False)
    assert logging.getLogger(NAME).level == logging.DEBUG
    change_levels([(NAME, None)], validate_only=False)
    assert logging.getLogger(NAME).level == logging.NOTSET


def test_level_stays_when_only_validated() -> None:
    change_levels([(NAME, "DEBUG")], validate_only=True)
    assert logging.getLogger(NAME).level == logging.INFO


@pytest.mark.parametrize(
    ("name", "level", "code"),
    [
        ("millstream.no.such.logger", "INFO", ErrorCode.INVALID_CONFIG),
        (NAME, "LOUD", ErrorCode.INVALID_CONFIG),
        ("root", None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_change_is_refused_and_changes_nothing(
    name: str, level: str | None, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as caught:
        change_levels([(NAME, "DEBUG"), (name, level)], validate_only=False)
    assert caught.value.code is code
    assert logging.getLogger(NAME).level == logging.INFO


def test_setting_of_a_logger_has_the_levels_as_options() -> None:
    assert logger_setting(NAME).options == ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
