"""Samples, aggregated per interval, as JSON records. Pure: time is passed in.

counters   {"name": "hits", "type": "c", "tags": {...}, "from": ms, "to": ms, "value": 12.0}
gauges     the same, with the last value; kept from one interval to the next
timings    "count", "sum", "min", "max"; count is divided by the rate
sets       "value": how many different ones
"""

from __future__ import annotations

import json
import sys
from typing import Any

from millstream.admin.outgoing import Outgoing
from millstream.bridges.statsd._packets import Cell, Recurring
from millstream.bridges.statsd.lines import BadLine, Sample, parse_line, tags_of

SERIES_MAX = 100_000
SET_MEMBERS_MAX = 100_000
BYTES_MAX = 256 * 1024 * 1024  # of all series and members of sets, approximately
_OBJECT_BYTES = 100  # of a series or member, besides its text
_LARGEST = sys.float_info.max

Series = tuple[bytes, str, bytes]


class Intervals:
    """The aggregates of one interval. Lines that recur are added by `recurring`, which knows the
    cell of each."""

    def __init__(self) -> None:
        self.recurring = Recurring(SERIES_MAX)
        self._cells: dict[Series, Cell] = {}
        self._sets: dict[Series, set[bytes]] = {}
        self._bytes = 0

    def add_line(self, line: bytes) -> int:
        """Add the samples of a line; returns how many they are. Raises `BadLine` if it is none, or
        if there are too many series or members of a set."""
        samples = parse_line(line)
        for sample in samples:
            cell = self._add(sample)
            if cell is not None and len(samples) == 1 and not sample.is_change:
                self.recurring.remember(line, cell, sample.rate)
        return len(samples)

    def _add(self, sample: Sample) -> Cell | None:
        series = (sample.name, sample.type, sample.tags)
        if sample.type == "s":
            self._add_member(series, sample.text)
            return None
        cell = self._cells.get(series)
        if cell is None:
            self._take_room(series)
            cell = self._cells[series] = Cell(sample.type)
        if sample.is_change:
            cell.add(cell.last + sample.value, 1.0)
        else:
            cell.add(sample.value, 1.0 / sample.rate)
        return cell

    def _add_member(self, series: Series, member: bytes) -> None:
        members = self._sets.get(series)
        if members is None:
            self._take_room(series)
            members = self._sets[series] = set()
        if member in members:
            return
        size = _OBJECT_BYTES + len(member)
        if len(members) >= SET_MEMBERS_MAX or self._bytes + size > BYTES_MAX:
            raise BadLine("set too large")
        members.add(member)
        self._bytes += size

    def _take_room(self, series: Series) -> None:
        size = _bytes_of(series)
        is_full = len(self._cells) + len(self._sets) >= SERIES_MAX
        if is_full or self._bytes + size > BYTES_MAX:
            raise BadLine("too many series")
        self._bytes += size

    def finish(self, from_ms: int, to_ms: int) -> list[Outgoing]:
        """The records of the interval, which begins again. Gauges keep their values."""
        found = [(it, _values(cell)) for it, cell in self._cells.items() if cell.is_changed]
        found += [(it, {"value": len(members)}) for it, members in self._sets.items()]
        self._cells = {it: cell for it, cell in self._cells.items() if cell.kind == "g"}
        for cell in self._cells.values():
            cell.begin()
        self._sets = {}
        self._bytes = sum(map(_bytes_of, self._cells))
        self.recurring.forget()
        span = {"from": from_ms, "to": to_ms}
        return [record(series, span | values, to_ms) for series, values in found]


def _bytes_of(series: Series) -> int:
    name, _, tags = series
    return _OBJECT_BYTES + len(name) + len(tags)


def _values(cell: Cell) -> dict[str, Any]:
    if cell.kind == "g":
        return {"value": finite(cell.last)}
    if cell.kind == "c":
        return {"value": finite(cell.total)}
    return {
        "count": finite(cell.weight),
        "sum": finite(cell.total),
        "min": cell.least,
        "max": cell.most,
    }


def finite(value: float) -> float:
    """A sum beyond the largest number, which JSON cannot have, as that number."""
    return 0.0 if value != value else max(-_LARGEST, min(value, _LARGEST))


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
