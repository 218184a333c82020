"""The levels of this process's loggers, as BROKER_LOGGER settings: for the time until it ends.

Levels have Kafka's names. TRACE is below Python's DEBUG, FATAL is its CRITICAL.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from millstream.config.setting import Kind, Setting, nearest
from millstream.errors import ApiError, ErrorCode

ROOT = "root"
OUR_LOGGERS = "millstream"

_LEVELS: Mapping[str, int] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}


def logger_levels() -> dict[str, str]:
    """Every logger of ours, and the root, with the level in force."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(OUR_LOGGERS)]
    levels = {name: _name_of(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}
    return {ROOT: _name_of(logging.root.level), **levels}


def change_levels(changes: Iterable[tuple[str, str | None]], *, validate_only: bool) -> None:
    """Set loggers' levels; None takes a level back. Raises `ApiError`, then nothing is changed."""
    known = logger_levels()
    wanted: list[tuple[str, int]] = []
    for name, level in changes:
        if name not in known:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!{nearest(name, known)}"
            )
        if level is None and name == ROOT:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger")
        if level is not None and level.upper() not in _LEVELS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {level} as it is not a supported log "
                f"level. Valid log levels are {', '.join(_LEVELS)}",
            )
        wanted.append((name, logging.NOTSET if level is None else _LEVELS[level.upper()]))
    if not validate_only:
        for name, number in wanted:
            logging.getLogger(None if name == ROOT else name).setLevel(number)


def logger_setting(name: str) -> Setting:
    doc = "The level of this logger."
    return Setting(Kind.STRING, None, doc, name=name, options=tuple(_LEVELS))


def _name_of(level: int) -> str:
    return next((name for name, number in _LEVELS.items() if level >= number), "TRACE")
