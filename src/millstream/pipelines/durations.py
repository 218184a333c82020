"""Durations as people write them, in microseconds, Spark's own unit of time.

    "10 minutes"   "1 hour 30 minutes"   "1.5 seconds"   "2 h"   timedelta(minutes=10)

Months and years are no durations: they have no fixed length. A day is 24 hours here, whatever the
clocks do; windows that follow the calendar are a kind of their own.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from millstream.errors import ConfigError

Duration: TypeAlias = "str | timedelta"

EXAMPLE = 'write it like "10 minutes", "1 hour 30 minutes" or timedelta(minutes=10)'
DURATION_US_MAX = 2**60  # 36,000 years; a few of them can be added to a time in 64 bits
_UNITS_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 7 * 86_400_000_000,
    "w": 7 * 86_400_000_000,
}
_UNFIXED = {"month", "quarter", "year"}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


def duration_us(duration: Duration, name: str = "duration", *, zero_allowed: bool = False) -> int:
    """Microseconds; `name` is what the error calls it. Raises `ConfigError`."""
    if isinstance(duration, timedelta):
        length_us = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        length_us = _parse(duration, name)
    else:
        raise ConfigError(f"{name} {duration!r} is no duration: {EXAMPLE}")
    if length_us < 0 or (length_us == 0 and not zero_allowed):
        raise ConfigError(f"{name} {str(duration)!r} is too short: it must be longer than 0")
    if length_us > DURATION_US_MAX:
        raise ConfigError(f"{name} {str(duration)!r} is too long")
    return length_us


def duration_text(length_us: int) -> str:
    """As people write it, exactly: "1 hour 30 minutes"."""
    parts = []
    rest_us = length_us
    for name in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest_us = divmod(rest_us, _UNITS_US[name])
        if count:
            parts.append(f"{count} {name}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def _parse(text: str, name: str) -> int:
    total = Decimal(0)
    position = 0
    stripped = text.strip().removeprefix("interval ").removeprefix("INTERVAL ")
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            raise ConfigError(f"{name} {text!r} is no duration: {EXAMPLE}")
        total += Decimal(part[1]) * _unit_us(part[2], text, name)
        position = part.end()
    if position == 0:
        raise ConfigError(f"{name} {text!r} is no duration: {EXAMPLE}")
    if total != int(total):
        raise ConfigError(f"{name} {text!r} is finer than a microsecond")
    return int(total)


def _unit_us(word: str, text: str, name: str) -> int:
    unit = word.lower()
    singular = unit.removesuffix("s") if unit not in _UNITS_US else unit
    if singular in _UNFIXED:
        raise ConfigError(
            f"{name} {text!r}: a {singular} has no fixed length; say how many days you mean"
        )
    if singular not in _UNITS_US:
        raise ConfigError(f"{name} {text!r}: {word!r} is no unit of time; {EXAMPLE}")
    return _UNITS_US[singular]
