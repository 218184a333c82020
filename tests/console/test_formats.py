"""How numbers are shown."""

from __future__ import annotations

import pytest

from millstream.admin.settings import Setting
from millstream.console.formats import (
    NOTHING,
    meaning,
    moment,
    number,
    percent,
    rate,
    short,
    size,
    size_rate,
    span,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(1234567), "1,234,567"),
        (number(0), "0"),
        (number(None), "–"),
        (short(999), "999"),
        (short(9_999), "9,999"),
        (short(12_345), "12.3 K"),
        (short(999_999), "1 M"),
        (short(1_234_567), "1.23 M"),
        (short(2.5), "2.5"),
        (size(0), "0 B"),
        (size(1023), "1023 B"),
        (size(1536), "1.5 KB"),
        (size(5 * 1024**4), "5.0 TB"),
        (size(None), "–"),
        (rate(0), "0/s"),
        (rate(None), "–"),
        (size_rate(2048), "2.0 KB/s"),
        (span(12), "12 ms"),
        (span(90_000), "1 min 30 s"),
        (span(3_600_000), "1 h"),
        (span(90_061_000), "1 d 1 h"),
        (span(-90_000), "-1 min 30 s"),
        (span(None), "–"),
        (moment(0), "1970-01-01 00:00:00.000"),
        (moment(1_700_000_000_123), "2023-11-14 22:13:20.123"),
        (moment(-1), "–"),
        (moment(10**18), "1000000000000000000 ms"),
        (percent(0.123), "12.3 %"),
    ],
)
def test_formats(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("retention.ms", "604800000", "7 d"),
        ("retention.ms", "-1", "no limit"),
        ("flush.messages", "9223372036854775807", "no limit"),
        ("log.retention.hours", "168", "7 d"),
        ("segment.bytes", "1073741824", "1.0 GB"),
        ("segment.bytes", "12", ""),
        ("compression.gzip.level", "-1", ""),
        ("cleanup.policy", "delete", ""),
        ("log.dirs", None, ""),
    ],
)
def test_numbers_of_settings_have_a_meaning(name: str, value: str | None, expected: str) -> None:
    assert meaning(Setting(name, value, "default", is_own=False)) == expected


def test_what_is_not_finite_is_nothing() -> None:
    for it in (float("nan"), float("inf")):
        assert short(it) == span(it) == NOTHING
