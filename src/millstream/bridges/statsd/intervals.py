"""Samples, aggregated per interval, as JSON records. Pure: time is passed in.

counters   {"name": "hits", "type": "c", "tags": {...}, "from": ms, "to": ms, "value": 12.0}
gauges     the same, with the last value; kept from one interval to the next
timings    "count", "sum", "min", "max"; count is divided by the rate
sets       "value": how many different ones
"""

from __future__ import annotations

import json
from typing import Any

from millstream.admin.outgoing import Outgoing
from millstream.bridges.statsd.lines import BadLine, Sample, tags_of

SERIES_MAX = 100_000
SET_MEMBERS_MAX = 100_000

Series = tuple[bytes, str, bytes]


class Intervals:
    """The aggregates of one interval."""

    def __init__(self) -> None:
        self._counters: dict[Series, float] = {}
        self._gauges: dict[Series, float] = {}
        self._changed: set[Series] = set()
        self._timings: dict[Series, list[float]] = {}
        self._sets: dict[Series, set[bytes]] = {}

    def add(self, sample: Sample, times: int = 1) -> None:
        """Add a sample that came several times. Raises `BadLine` if there are too many series or
        members of a set."""
        series = (sample.name, sample.type, sample.tags)
        kind = sample.type
        if kind == "c":
            counters = self._counters
            if series not in counters:
                self._check(counters)
            counters[series] = counters.get(series, 0.0) + sample.value * times / sample.rate
        elif kind == "g":
            self._set_gauge(series, sample, times)
        elif kind == "s":
            self._add_member(series, sample.text)
        else:
            self._time(series, sample, times)

    def _set_gauge(self, series: Series, sample: Sample, times: int) -> None:
        if series not in self._gauges:
            self._check(self._gauges)
        value = sample.value
        if sample.is_change:
            value = self._gauges.get(series, 0.0) + value * times
        self._gauges[series] = value
        self._changed.add(series)

    def _add_member(self, series: Series, member: bytes) -> None:
        if series not in self._sets:
            self._check(self._sets)
        members = self._sets.setdefault(series, set())
        if member not in members and len(members) >= SET_MEMBERS_MAX:
            raise BadLine("set too large")
        members.add(member)

    def _time(self, series: Series, sample: Sample, times: int) -> None:
        found = self._timings.get(series)
        value, weight = sample.value, times / sample.rate
        if found is None:
            self._check(self._timings)
            self._timings[series] = [weight, value * weight, value, value]
            return
        found[0] += weight
        found[1] += value * weight
        if value < found[2]:
            found[2] = value
        if value > found[3]:
            found[3] = value

    def _check(self, table: Any) -> None:
        if len(table) >= SERIES_MAX:
            raise BadLine("too many series")

    def finish(self, from_ms: int, to_ms: int) -> list[Outgoing]:
        """The records of the interval, which begins again. Gauges keep their values."""
        found: list[tuple[Series, dict[str, Any]]] = []
        found += [(it, {"value": value}) for it, value in self._counters.items()]
        found += [(it, {"value": self._gauges[it]}) for it in sorted(self._changed)]
        found += [
            (it, {"count": count, "sum": total, "min": least, "max": most})
            for it, (count, total, least, most) in self._timings.items()
        ]
        found += [(it, {"value": len(members)}) for it, members in self._sets.items()]
        self._counters, self._timings, self._sets = {}, {}, {}
        self._changed = set()
        span = {"from": from_ms, "to": to_ms}
        return [record(series, span | values, to_ms) for series, values in found]


def record(series: Series, values: dict[str, Any], timestamp_ms: int) -> Outgoing:
    """A record with the name as its key, so that a metric is in one partition."""
    name, kind, tags = series
    shown = {"name": name.decode("utf-8", "replace"), "type": kind, "tags": tags_of(tags)}
    body = json.dumps(shown | values, separators=(",", ":")).encode("utf-8", "replace")
    return Outgoing(value=body, key=name, timestamp_ms=timestamp_ms)


def sample_record(sample: Sample, timestamp_ms: int) -> Outgoing:
    """A sample as a record of its own."""
    values: dict[str, Any] = {"value": sample.value, "rate": sample.rate}
    if sample.type == "s":
        values["value"] = sample.text.decode("utf-8", "replace")
    if sample.is_change:
        values["change"] = True
    return record((sample.name, sample.type, sample.tags), values, timestamp_ms)


def loss_record(name: str, dropped: int, from_ms: int, to_ms: int, refused: int = 0) -> Outgoing:
    """For readers of the topic: packets that the kernel dropped, and records that the cluster did
    not take."""
    body = {"bridge": name, "kernel_drops": dropped, "from": from_ms, "to": to_ms}
    if refused:
        body["records_refused"] = refused
    return Outgoing(
        value=json.dumps(body).encode(),
        key=b"millstream.bridge.loss",
        headers=[("millstream-loss", str(dropped + refused).encode())],
        timestamp_ms=to_ms,
    )
