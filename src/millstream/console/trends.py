"""Which way the lag of a group goes, from the samples of the last minutes."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.console.sampler import Sampler
from millstream.console.samples import LAG
from millstream.models import dataclass

POINTS = 30
CHANGE_MIN = 0.1  # of the larger one: less is neither growth nor shrinking


@dataclass(frozen=True)
class Trend:
    """Recent values, the oldest first, and where they go."""

    values: tuple[float, ...]
    direction: str  # growing, shrinking, steady


def direction_of(values: Sequence[float]) -> str:
    """By the averages of the first and of the last third of the values."""
    if len(values) < 3:
        return "steady"
    third = max(1, len(values) // 3)
    before, now = sum(values[:third]) / third, sum(values[-third:]) / third
    if abs(now - before) <= CHANGE_MIN * max(abs(now), abs(before), 1):
        return "steady"
    return "growing" if now > before else "shrinking"


def trend_of(values: Sequence[float]) -> Trend | None:
    """None while there is too little to draw."""
    if len(values) < 2:
        return None
    return Trend(tuple(values), direction_of(values))


def lag_trend(sampler: Sampler, group: str) -> Trend | None:
    """Of a group, by the samples of the user's session."""
    return trend_of(sampler.trend(LAG, group, POINTS))
