"""Times that are typed mean the zone of the browser."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millstream.admin.errors import InvalidArgument
from millstream.console.zones import in_full, in_zone

NOW = datetime(2026, 11, 14, 22, 30, tzinfo=UTC)


def test_moments_are_written_with_their_zone() -> None:
    assert in_full("2026-11-14T08:30", "60", NOW) == "2026-11-14T08:30:00.000+01:00"
    assert in_full("2026-11-14T08:30", "-210", NOW) == "2026-11-14T08:30:00.000-03:30"
    assert in_full("2026-11-14T08:30Z", "120", NOW) == "2026-11-14T10:30:00.000+02:00"
    assert in_full("today", "120", NOW) == "2026-11-15T00:00:00.000+02:00"
    assert in_full("15m", "0", NOW) == "2026-11-14T22:15:00.000+00:00"


def test_other_zones_are_those_of_the_console() -> None:
    for zone in ("", "x", "²", "-", "99999", "1.5", "+60"):
        assert in_zone(NOW, zone).utcoffset() == NOW.astimezone().utcoffset()
    assert in_zone(NOW, "9999").utcoffset() == in_zone(NOW, "1439").utcoffset()
    assert in_zone(NOW, "60") == NOW


def test_what_is_no_moment_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not a moment"):
        in_full("tomorrow-ish", "0", NOW)
    assert in_full("999999999999999999", "0", NOW) == "999999999999999999"
