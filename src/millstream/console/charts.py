"""Charts of the history: which series they have, and their data as the browser draws them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from millstream.console.history import History, Key
from millstream.console.samples import BYTES, LAG, RECORDS, SIZE, WHOLE
from millstream.models import dataclass

RANGES = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0}
RANGE_DEFAULT = "1h"
DIGITS = 4  # of a value: a browser plots no more


@dataclass(frozen=True)
class Chart:
    """A chart of a page. `lines` are labels with the series' keys."""

    id: str
    title: str
    unit: str  # as `ui.chart` wants it: "", "rate", "bytes", "bytes-rate"
    lines: tuple[tuple[str, Key], ...]


@dataclass(frozen=True)
class Line:
    label: str
    values: list[float | None]


@dataclass(frozen=True)
class ChartData:
    """Times in seconds since 1970, and a value of each line at each of them."""

    times: list[float] = field(default_factory=list)
    series: list[Line] = field(default_factory=list)


def of_cluster() -> tuple[Chart, ...]:
    return (
        Chart("records", "Records written", "rate", (("written", (RECORDS, WHOLE)),)),
        Chart("bytes", "Bytes written", "bytes-rate", (("written", (BYTES, WHOLE)),)),
        Chart("size", "Size on disk", "bytes", (("all replicas", (SIZE, WHOLE)),)),
        Chart("lag", "Lag of all groups", "", (("unread records", (LAG, WHOLE)),)),
    )


def of_topic(name: str) -> tuple[Chart, ...]:
    return (
        Chart("records", "Records written", "rate", (("written", (RECORDS, name)),)),
        Chart("bytes", "Bytes written", "bytes-rate", (("written", (BYTES, name)),)),
        Chart("size", "Size of the leaders", "bytes", (("size", (SIZE, name)),)),
    )


def of_group(group: str) -> tuple[Chart, ...]:
    return (Chart("lag", "Lag", "", (("unread records", (LAG, group)),)),)


def draw(
    history: History, charts: Sequence[Chart], chosen: str, now_seconds: float
) -> dict[str, ChartData]:
    """The data of charts by their ids, for a range of `RANGES`."""
    since = now_seconds - RANGES.get(chosen, RANGES[RANGE_DEFAULT])
    return {it.id: _draw(history, it.lines, since) for it in charts}


def _draw(history: History, lines: Sequence[tuple[str, Key]], since: float) -> ChartData:
    times: list[float] = []
    drawn = []
    for label, key in lines:
        points = history.points(key, since)
        if not times:
            times = [round(it, 1) for it in points.times]
        values = [None if it is None else _rounded(it) for it in points.values]
        # A sample may have come in between: all lines are as long as the first.
        drawn.append(Line(label, (values + [None] * len(times))[: len(times)]))
    return ChartData(times, drawn)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def latest(data: Mapping[str, ChartData]) -> float | None:
    """The time of the newest sample."""
    return max((it.times[-1] for it in data.values() if it.times), default=None)
