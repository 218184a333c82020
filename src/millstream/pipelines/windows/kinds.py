"""The kinds of windows, and the windows of a row, as expressions that Spark compiles.

    Tumbling   consecutive windows of `size`, counted from 1970 in UTC
    Hopping    windows of `size`, one starting every `slide`: a row belongs to several
    Calendar   days, weeks (from Monday), months, quarters or years in a time zone: a day has 23 or
               25 hours when summer time begins or ends
    Session    rows that are at most `gap` apart; ends `gap` after the last row

A window includes its start and excludes its end. Times are in microseconds since 1970, whatever the
time zone of the session is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_text

if TYPE_CHECKING:
    from pyspark.sql import Column

Unit = Literal["day", "week", "month", "quarter", "year"]
OVERLAP_MAX = 10_000  # windows that one row belongs to
_EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"


class Bounds(NamedTuple):
    """A window's start and end, in microseconds; null for a row without a time."""

    start_us: Column
    end_us: Column


@dataclass(frozen=True)
class Tumbling:
    size_us: int

    @property
    def label(self) -> str:
        return f"tumbling {duration_text(self.size_us)}"

    def starts_us(self, time: Column) -> Column:
        """The start of the window, or an array of them."""
        return _last_start(time, self.size_us)

    def end_us(self, start_us: Column) -> Column:
        return start_us + self.size_us


@dataclass(frozen=True)
class Hopping:
    size_us: int
    slide_us: int

    def __post_init__(self) -> None:
        if self.slide_us > self.size_us:
            raise ConfigError(
                "slide is longer than size: rows between two windows would belong to none. Make it "
                "shorter, or as long, which is a tumbling window"
            )
        if -(-self.size_us // self.slide_us) > OVERLAP_MAX:
            raise ConfigError(
                f"slide is so short that a row belongs to more than {OVERLAP_MAX} windows: make it "
                "longer, or use sliding, which has one for every event"
            )

    @property
    def label(self) -> str:
        return f"hopping {duration_text(self.size_us)} by {duration_text(self.slide_us)}"

    def starts_us(self, time: Column) -> Column:
        from pyspark.sql.functions import lit, sequence, unix_micros

        last = _last_start(time, self.slide_us)
        # The first one that has not ended: the smallest start beyond `time - size`.
        ended_us = unix_micros(time) - self.size_us
        first = ended_us - _remainder(ended_us, self.slide_us) + self.slide_us
        return sequence(first, last, lit(self.slide_us))

    def end_us(self, start_us: Column) -> Column:
        return start_us + self.size_us


@dataclass(frozen=True)
class Calendar:
    unit: Unit
    zone: str

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ConfigError(f"unit {self.unit!r}: choose one of {', '.join(get_args(Unit))}")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError):
            raise ConfigError(
                f'there is no time zone {self.zone!r}: write it like "Europe/Berlin" or "UTC"'
            ) from None

    @property
    def label(self) -> str:
        return f"calendar {self.unit} in {self.zone}"

    def starts_us(self, time: Column) -> Column:
        from pyspark.sql.functions import expr, make_dt_interval, to_date, trunc, unix_seconds

        utc = expr(_EPOCH) + make_dt_interval(secs=unix_seconds(time).cast("decimal(18, 6)"))
        date = to_date(_convert("UTC", self.zone, utc))
        return _midnight_us(date if self.unit == "day" else trunc(date, self.unit), self.zone)

    def end_us(self, start_us: Column) -> Column:
        """The midnight after: by the date, since days differ in length."""
        from pyspark.sql.functions import add_months, date_add, expr, make_dt_interval, to_date

        seconds = (start_us / 1_000_000).cast("decimal(18, 6)")
        local = _convert("UTC", self.zone, expr(_EPOCH) + make_dt_interval(secs=seconds))
        date = to_date(local)
        months = {"month": 1, "quarter": 3, "year": 12}.get(self.unit)
        following = (
            date_add(date, 1 if self.unit == "day" else 7)
            if months is None
            else add_months(date, months)
        )
        return _midnight_us(following, self.zone)


@dataclass(frozen=True)
class Session:
    gap_us: int

    @property
    def label(self) -> str:
        return f"session {duration_text(self.gap_us)}"


Aligned: TypeAlias = Tumbling | Hopping | Calendar  # their windows do not depend on the rows
Kind: TypeAlias = Aligned | Session


def _last_start(time: Column, step_us: int) -> Column:
    from pyspark.sql.functions import unix_micros

    micros = unix_micros(time)
    return micros - _remainder(micros, step_us)


def _remainder(micros: Column, step_us: int) -> Column:
    """Of times before 1970, too, from the step before."""
    from pyspark.sql.functions import lit, pmod

    return pmod(micros, lit(step_us).cast("long"))


def _convert(source: str, target: str, moment: Column) -> Column:
    from pyspark.sql.functions import convert_timezone, lit

    return convert_timezone(lit(source), lit(target), moment)


def _midnight_us(date: Column, zone: str) -> Column:
    """When a day begins in a time zone; if summer time skips midnight, the first time after it."""
    from pyspark.sql.functions import expr

    midnight = _convert(zone, "UTC", date.cast("timestamp_ntz"))
    # Not timestamp_diff: it takes both for times of the session's zone, which may skip this one.
    return (midnight - expr(_EPOCH)).cast("interval second").cast("bigint") * 1_000_000
