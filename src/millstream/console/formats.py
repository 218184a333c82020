"""How numbers, sizes, spans and moments are shown. Pure; registered as Jinja's filters."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.admin.settings import Setting

NOTHING = "–"
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
# From 10,000 on; 9,999 is as short as 10.0 K.
_SHORT = ((999.5e9, 1e12, "T"), (999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e4, 1e3, "K"))
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def number(amount: float | None) -> str:
    """1234567 as `1,234,567`."""
    if amount is None:
        return NOTHING
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.1f}"


def short(amount: float | None) -> str:
    """1234567 as `1.23 M`."""
    if amount is None or not math.isfinite(amount):
        return NOTHING
    for limit, divisor, unit in _SHORT:
        if abs(amount) >= limit:
            return f"{amount / divisor:.3g} {unit}"
    return f"{amount:,.0f}" if amount == int(amount) or abs(amount) >= 100 else f"{amount:.1f}"


def size(size_bytes: float | None) -> str:
    """1536 as `1.5 KB`: multiples of 1024."""
    if size_bytes is None:
        return NOTHING
    rest = float(size_bytes)
    for unit in _SIZES:
        if abs(rest) < 1024 or unit == _SIZES[-1]:
            break
        rest /= 1024
    return f"{rest:.0f} {unit}" if unit == "B" or abs(rest) >= 100 else f"{rest:.1f} {unit}"


def rate(per_second: float | None) -> str:
    return NOTHING if per_second is None else f"{short(per_second)}/s"


def size_rate(bytes_per_second: float | None) -> str:
    return NOTHING if bytes_per_second is None else f"{size(bytes_per_second)}/s"


def span(span_ms: float | None) -> str:
    """90000 as `1 min 30 s`: the two largest units."""
    if span_ms is None or not math.isfinite(span_ms):
        return NOTHING
    if abs(span_ms) < 1_000:
        return f"{span_ms:.0f} ms"
    rest = int(abs(span_ms))
    parts: list[str] = []
    for unit_ms, unit in _SPANS:
        if rest >= unit_ms or parts:
            whole, rest = divmod(rest, unit_ms)
            parts.append(f"{whole} {unit}" if whole else "")
        if len(parts) == 2:
            break
    return ("-" if span_ms < 0 else "") + " ".join(part for part in parts if part)


def moment(timestamp_ms: float | None) -> str:
    """A timestamp in UTC, with milliseconds: `2026-11-17 21:54:03.123`."""
    if timestamp_ms is None or timestamp_ms < 0:
        return NOTHING
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms:.0f} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S.") + f"{int(timestamp_ms) % 1000:03}"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share * 100:.3g} %"


def meaning(setting: Setting) -> str:
    """What a number means: `retention.ms` as a span, `segment.bytes` as a size."""
    text = setting.value or ""
    if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 20:
        return ""
    amount, name = int(text), setting.name
    if amount in (-1, 2**63 - 1) and (".ms" in name or ".bytes" in name or "messages" in name):
        return "no limit"
    if name.endswith(".ms") and amount >= 1000:
        return span(amount)
    if name.endswith((".hours", ".minutes")):
        return span(amount * (3_600_000 if name.endswith(".hours") else 60_000))
    if "bytes" in name.split(".") and amount >= 1024:
        return size(amount)
    return ""


FILTERS = {
    "meaning": meaning,
    "number": number,
    "short": short,
    "size": size,
    "rate": rate,
    "size_rate": size_rate,
    "span": span,
    "moment": moment,
    "percent": percent,
}
