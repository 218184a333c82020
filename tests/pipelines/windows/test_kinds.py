"""Which windows a time belongs to, against plain Python and its time zones."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from millstream.pipelines.windows import calendar, hopping, tumbling
from millstream.pipelines.windows.kinds import Calendar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In Noronha a day begins at 2:00 in UTC, an hour that Berlin does not have where its summer begins.
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "America/Noronha")
TIMES = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    *(
        datetime(2026, month, day, hour, 30, tzinfo=UTC)
        for month, day in ((1, 1), (3, 28), (3, 29), (3, 31), (10, 25), (10, 26), (12, 31))
        for hour in (0, 3, 22, 23)
    ),
]


def day_of(moment: datetime, zone: str) -> date:
    return moment.astimezone(ZoneInfo(zone)).date()


def midnight(day: date, zone: str) -> datetime:
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)


def bounds(unit: str, day: date) -> tuple[date, date]:
    if unit == "day":
        return day, day + timedelta(days=1)
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=7)
    length = {"month": 1, "quarter": 3, "year": 12}[unit]
    first = (day.month - 1) // length * length
    start = date(day.year, first + 1, 1)
    following = first + length
    return start, date(day.year + following // 12, following % 12 + 1, 1)


@pytest.mark.parametrize("session_zone", ["UTC", "Europe/Berlin"])
def test_calendar_windows_are_those_of_the_time_zone_whatever_the_sessions_is(
    spark: SparkSession, session_zone: str
) -> None:
    frame = spark.createDataFrame([(it,) for it in TIMES], "at timestamp")
    expected = {}
    windows = {}
    spark.conf.set("spark.sql.session.timeZone", session_zone)
    try:
        for unit in ("day", "week", "month", "quarter", "year"):
            for zone in ZONES:
                window = calendar(unit, zone, time="at", key="at", n="count(*)")
                assert isinstance(window.kind, Calendar)
                windows[unit, zone] = {
                    (row.at_us, row.start_us, row.end_us)
                    for row in frame.transform(window)
                    .selectExpr(
                        "unix_micros(at) as at_us",
                        "unix_micros(window_start) as start_us",
                        "unix_micros(window_end) as end_us",
                    )
                    .collect()
                }
                expected[unit, zone] = {
                    (micros(it), *(micros(midnight(day, zone)) for day in days))
                    for it in TIMES
                    for days in [bounds(unit, day_of(it, zone))]
                }
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert windows == expected


SUMMER_TIME = [
    ("day", "Europe/Berlin", datetime(2026, 3, 29, 12, tzinfo=UTC), 23),
    ("day", "Europe/Berlin", datetime(2026, 10, 25, 12, tzinfo=UTC), 25),
    ("day", "Europe/Berlin", datetime(2026, 10, 26, 12, tzinfo=UTC), 24),
    ("week", "Europe/Berlin", datetime(2026, 3, 29, 12, tzinfo=UTC), 7 * 24 - 1),
    ("week", "America/New_York", datetime(2026, 10, 31, 12, tzinfo=UTC), 7 * 24 + 1),
    ("month", "Europe/Berlin", datetime(2026, 3, 1, 12, tzinfo=UTC), 31 * 24 - 1),
    ("month", "Europe/Berlin", datetime(2026, 10, 31, 12, tzinfo=UTC), 31 * 24 + 1),
    ("year", "Europe/Berlin", datetime(2026, 7, 1, tzinfo=UTC), 365 * 24),
    ("day", "America/Sao_Paulo", datetime(2018, 11, 4, 12, tzinfo=UTC), 23),  # has no midnight
]


def test_calendar_windows_are_as_long_as_summer_time_makes_them(spark: SparkSession) -> None:
    for unit, zone, moment, hours in SUMMER_TIME:
        window = calendar(unit, zone, time="at", n="count(*)")  # type: ignore[arg-type]
        frame = spark.createDataFrame([(moment,)], "at timestamp")
        bounds_s = ["unix_seconds(window_start) as start", "unix_seconds(window_end) as end"]
        (row,) = frame.transform(window).selectExpr(*bounds_s).collect()
        assert row.end - row.start == hours * 3600, f"{unit} of {moment} in {zone}"
        assert row.start <= moment.timestamp() < row.end


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_windows_have_their_start_and_not_their_end(spark: SparkSession) -> None:
    moments_us = [-1, 0, 1, 59_999_999, 60_000_000, 61_000_000]
    frame = spark.createDataFrame([(it,) for it in moments_us], "us long")
    frame = frame.selectExpr("us", "timestamp_micros(us) as at")
    for window, size_us, slide_us in (
        (tumbling("1 minute", time="at", key="us", n="count(*)"), 60_000_000, 60_000_000),
        (hopping("1 minute", "25 s", time="at", key="us", n="count(*)"), 60_000_000, 25_000_000),
        (
            hopping("1 minute", "1 minute", time="at", key="us", n="count(*)"),
            60_000_000,
            60_000_000,
        ),
    ):
        found = frame.transform(window).selectExpr("us", "unix_micros(window_start) as start_us")
        assert {(row.us, row.start_us) for row in found.collect()} == {
            (us, start_us)
            for us in moments_us
            for start_us in range(-4 * slide_us, 5 * slide_us, slide_us)
            if start_us <= us < start_us + size_us
        }
