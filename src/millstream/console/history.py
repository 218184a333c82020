"""Samples of the last hours, in memory and bounded: what the charts of the console plot. Pure.

    history = History()
    history.add(time_seconds, {("records", ""): 120.5, ("lag", "billing"): 7})
    history.points(("lag", "billing"))

Recent samples are kept as they were taken; older ones as averages of a minute. All series share
their times. A series begins with its first value that is not zero: most topics of a large cluster
are idle, and need no memory. If there are too many, the one that has been zero for longest is
dropped.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Mapping
from typing import NamedTuple

RECENT_MAX = 180
MINUTES_MAX = 360
SERIES_MAX = 1500  # of 2.2 KB each
MINUTE = 60.0
GAP = math.nan  # there was no value

Key = tuple[str, str]
"""What it measures, and of which topic or group; the second is empty for the whole cluster."""


class Points(NamedTuple):
    """Times in seconds since 1970, and values; None where there was none."""

    times: list[float]
    values: list[float | None]


class _Series:
    def __init__(self) -> None:
        self.recent = array("f", [GAP]) * RECENT_MAX
        self.minutes = array("f", [GAP]) * MINUTES_MAX
        self.last_active = -math.inf  # when the value was last not zero
        self.sum = 0.0  # of the current minute
        self.count = 0


class History:
    """See the module. One thread adds; others may read a copy with `points` at the same time."""

    def __init__(self, *, series_max: int = SERIES_MAX) -> None:
        self._lock = threading.Lock()
        self._series: dict[Key, _Series] = {}
        self._series_max = series_max
        self._recent_times = array("d", [GAP]) * RECENT_MAX
        self._minute_times = array("d", [GAP]) * MINUTES_MAX
        self._recent_count = 0
        self._minute_count = 0
        self._minute: int | None = None  # that is being averaged, since 1970

    @property
    def _last_slot(self) -> int:
        return (self._recent_count - 1) % RECENT_MAX

    @property
    def size(self) -> int:
        """How many series there are."""
        return len(self._series)

    def add(self, time_seconds: float, values: Mapping[Key, float]) -> None:
        """One sample. Series that have no value in it get a gap. A sample that is not later than
        the last one, because a clock was set back, is ignored."""
        with self._lock:  # else a reader might see the new time with a value of 15 minutes ago
            self._add(time_seconds, values)

    def _add(self, time_seconds: float, values: Mapping[Key, float]) -> None:
        if self._recent_count and time_seconds <= self._recent_times[self._last_slot]:
            return
        minute = int(time_seconds // MINUTE)
        if self._minute is not None and minute != self._minute:
            self._end_minute(self._minute)
        self._minute = minute
        for key, value in values.items():
            if value != 0 and key not in self._series:
                self._begin(key)
        slot = self._recent_count % RECENT_MAX
        self._recent_times[slot] = time_seconds
        self._recent_count += 1
        for key, series in list(self._series.items()):
            value = values.get(key, GAP)
            series.recent[slot] = value
            if not math.isnan(value):
                series.sum += value
                series.count += 1
                if value != 0:
                    series.last_active = time_seconds

    def _begin(self, key: Key) -> None:
        """A series for a key, which was zero until now."""
        if len(self._series) >= self._series_max:
            idle = min(self._series, key=lambda it: self._series[it].last_active)
            del self._series[idle]
        series = _Series()
        for slot in range(min(self._recent_count, RECENT_MAX)):
            series.recent[slot] = 0.0
        for slot in range(min(self._minute_count, MINUTES_MAX)):
            series.minutes[slot] = 0.0
        self._series[key] = series

    def _end_minute(self, minute: int) -> None:
        slot = self._minute_count % MINUTES_MAX
        self._minute_times[slot] = minute * MINUTE
        self._minute_count += 1
        for series in self._series.values():
            series.minutes[slot] = series.sum / series.count if series.count else GAP
            series.sum, series.count = 0.0, 0

    def points(self, key: Key, since_seconds: float = -math.inf) -> Points:
        """The series from a time on: averages of minutes, then recent samples. Zeros for a key
        that never had another value."""
        with self._lock:
            return self._points(key, since_seconds)

    def _points(self, key: Key, since_seconds: float) -> Points:
        series = self._series.get(key)
        recent_slots = _slots(self._recent_count, RECENT_MAX)
        first_recent = self._recent_times[recent_slots[0]] if recent_slots else math.inf
        times: list[float] = []
        values: list[float | None] = []
        for slot in _slots(self._minute_count, MINUTES_MAX):
            time = self._minute_times[slot]
            if since_seconds <= time and time + MINUTE <= first_recent:
                times.append(time)
                values.append(_known(series.minutes[slot] if series else 0.0))
        for slot in recent_slots:
            if self._recent_times[slot] >= since_seconds:
                times.append(self._recent_times[slot])
                values.append(_known(series.recent[slot] if series else 0.0))
        return Points(times, values)

    def last(self, key: Key) -> float | None:
        """The newest value; None if there is none."""
        with self._lock:
            if not self._recent_count:
                return None
            series = self._series.get(key)
            return _known(series.recent[self._last_slot]) if series else 0.0


def _slots(count: int, size: int) -> list[int]:
    """The slots of a ring that are in use, the oldest first."""
    return [index % size for index in range(max(0, count - size), count)]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def thinned(points: Points, size: int) -> list[float | None]:
    """At most `size` values, for a sparkline: the largest of each stretch."""
    values = points.values
    if len(values) <= size:
        return values
    step = len(values) / size
    stretches = (values[int(it * step) : int((it + 1) * step)] for it in range(size))
    return [max((it for it in stretch if it is not None), default=None) for stretch in stretches]
