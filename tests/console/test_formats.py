"""How numbers are shown."""

from __future__ import annotations

import pytest

from millstream.console.formats import moment, number, percent, rate, short, size, size_rate, span


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
