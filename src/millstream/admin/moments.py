"""Parses points in time and durations as users write them, and formats them for tables.

A point in time: `2026-11-14`, `2026-11-14T08:30`, `2026-11-14T08:30:00.250+01:00`, `1763108400000`
(milliseconds since 1970), `now`, `today`, `yesterday`, or a span ago: `15m`, `2h30m`, `7d`.
A moment without a zone is local time. A span: `250ms`, `90s`, `1d12h`, or ISO 8601 (`PT1H30M`,
`P7D`) as in Kafka's own tools.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from millstream.admin.errors import InvalidArgument
from millstream.admin.numbers import decimal

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
ISO_SPAN = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
EPOCH_MS_DIGITS_MIN = 12  # shorter numbers are probably a year or seconds: refused


def parse_span_ms(text: str) -> int:
    """A span of time in milliseconds."""
    compact = text.strip().replace(" ", "")
    parts = SPAN.findall(compact)
    if parts and "".join(number + unit for number, unit in parts) == compact:
        return round(sum(float(number) * UNIT_MS[unit] for number, unit in parts))
    match = ISO_SPAN.fullmatch(compact)
    if match and any(match.groups()):
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return round(
            timedelta(
                weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds
            ).total_seconds()
            * 1000
        )
    raise InvalidArgument(f"{text!r} is not a span of time; write 90s, 15m, 2h30m, 7d or PT1H30M")


def parse_moment_ms(text: str, now: datetime) -> int:
    """A point in time in milliseconds since 1970; `now` has the default time zone."""
    compact = text.strip()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if compact.lower() in named:
        return to_ms(named[compact.lower()])
    if len(compact) >= EPOCH_MS_DIGITS_MIN and (epoch_ms := decimal(compact)) is not None:
        return epoch_ms
    if SPAN.match(compact) and compact[-1] in "smhdw":
        return to_ms(now) - parse_span_ms(compact)
    try:
        moment = datetime.fromisoformat(compact)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a moment; write 2026-11-14T08:30, yesterday, 15m (ago) "
            "or milliseconds since 1970"
        ) from None
    return to_ms(moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo))


def to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def show_moment(timestamp_ms: int) -> str:
    """Local time with milliseconds, or `-` if there is none."""
    if timestamp_ms < 0:
        return "-"
    moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    return moment.isoformat(sep=" ", timespec="milliseconds")


def show_span(span_ms: int) -> str:
    """The two largest units of a span: `2d 3h`, `4m 10s`, `0s`."""
    parts = []
    rest = max(0, span_ms)
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
