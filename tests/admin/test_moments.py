"""Points and spans of time, as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from millstream.admin.errors import InvalidArgument
from millstream.admin.moments import parse_moment_ms, parse_span_ms, show_moment, show_span, to_ms

NOW = datetime(2026, 11, 15, 12, 30, tzinfo=timezone(timedelta(hours=1)))
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("15m", 900_000),
        ("2h30m", 9_000_000),
        ("1.5h", 5_400_000),
        ("7d", 7 * 24 * HOUR_MS),
        ("1w", 7 * 24 * HOUR_MS),
        ("PT1H30M", 5_400_000),
        ("P1D", 24 * HOUR_MS),
        ("PT0.5S", 500),
    ],
)
def test_span_is_understood(text: str, span_ms: int) -> None:
    assert parse_span_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "5", "h", "5 parsecs", "P", "PT", "-5m"])
def test_span_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a span of time"):
        parse_span_ms(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("today", NOW.replace(hour=0, minute=0)),
        ("Yesterday", NOW.replace(day=14, hour=0, minute=0)),
        ("15m", NOW - timedelta(minutes=15)),
        ("2026-11-14", NOW.replace(day=14, hour=0, minute=0)),
        ("2026-11-14T08:30", NOW.replace(day=14, hour=8)),
        ("2026-11-14T08:30Z", datetime(2026, 11, 14, 8, 30, tzinfo=UTC)),
        ("2026-11-14 08:30:00.250+02:00", datetime(2026, 11, 14, 6, 30, 0, 250_000, tzinfo=UTC)),
        ("1763108400000", datetime.fromtimestamp(1763108400, tz=UTC)),
    ],
)
def test_moment_is_understood(text: str, moment: datetime) -> None:
    assert parse_moment_ms(text, NOW) == to_ms(moment)


@pytest.mark.parametrize("text", ["", "tomorrow-ish", "2026", "1763108400", "2026-13-01", "²" * 13])
def test_moment_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a moment"):
        parse_moment_ms(text, NOW)


def test_show_span_keeps_the_two_largest_units() -> None:
    assert show_span(((26 * 60 + 3) * 60 + 4) * 1000) == "1d 2h"
    assert show_span(61_500) == "1m 1s"
    assert show_span(-1) == "0s"


def test_show_moment_marks_a_missing_one() -> None:
    assert show_moment(-1) == "-"
    assert show_moment(1_763_108_400_250).endswith("00.250" + show_moment(0)[-6:])
