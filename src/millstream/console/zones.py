"""Times that are typed into a page: they mean the time zone of the browser, which forms send as
`zone`, in minutes east of UTC; without it, that of the console. Pure, except for the console's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from millstream.admin.moments import parse_moment_ms

MINUTES_MAX = 24 * 60 - 1


def in_zone(now: datetime, zone: str) -> datetime:
    """The same moment in a zone of a form; in that of the console if it is none."""
    digits = zone.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 4:
        return now.astimezone()
    minutes = max(-MINUTES_MAX, min(MINUTES_MAX, int(zone)))
    return now.astimezone(timezone(timedelta(minutes=minutes)))


def in_full(text: str, zone: str, now: datetime) -> str:
    """A moment as it is typed, with its zone: `2026-11-14T08:30:00.000+01:00`, so that it means
    the same everywhere. Raises `InvalidArgument`."""
    here = in_zone(now, zone)
    try:
        found = datetime.fromtimestamp(parse_moment_ms(text, here) / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return text  # no such time, which is said where it is used
    return found.astimezone(here.tzinfo).isoformat(timespec="milliseconds")
